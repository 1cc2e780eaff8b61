"""Attack an environment: play policies without a right answer, and report those that are paid (earn a reward).

The attack also plays right answers in changed form, and reports those that are refused (earn no reward).
Invariant: an attack changes nothing in the environment, and the same environment gives the same report. Not covered:
rewards that depend on the policy's model, and simulated users or judges that are played by a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from turntree.envs.checking.altered_answers import RIGHT_CHANGES, WRONG_CHANGES
from turntree.envs.checking.attempts import Attempt, Outcome, Target, Turn, play_attempt, targets
from turntree.envs.checking.empty_policies import EMPTY_POLICIES, Policy
from turntree.envs.checking.hidden_answers import HIDDEN_ANSWERS
from turntree.envs.env import Env
from turntree.envs.errors import DataError
from turntree.envs.task import Task

BOUND = 0.004  #: highest fraction of the tasks that may pay a wrong policy, or refuse a right one
LUCK = 0.5  #: highest fraction of the tasks in which a policy's guess may be right
# Typesetting, and text around a value (a name before "=", a unit): ignored when a guess is compared with the answer.
_NOISE = re.compile(r"[\s$,]|\\(?:left|right|text\w*|[,;:! ])|[(){}.]")
_AROUND = re.compile(r"^\s*\$?[^=<>]*=|\\text\w*\s*\{[^{}]*\}|\\[$%]")
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The rewards of one attacking policy."""

    policy: str
    must_pay: bool  #: whether the policy's answers are right
    tasks: int  #: number of tasks to which the policy applies
    paid: Mapping[str, str]  #: task id -> the text that was paid, without lucky guesses
    lucky: int  #: number of tasks that paid a guess because the guess was the right answer
    refused: tuple[str, ...]  #: ids of the tasks that did not pay
    failed: Mapping[str, str]  #: task id -> the reason why an episode had no verdict

    @property
    def share(self) -> float:
        """Fraction of the tasks that paid, without lucky guesses."""
        return len(self.paid) / self.tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The report of an attack."""

    tasks: int  #: number of attacked tasks
    nothing: Mapping[str, float]  #: mean reward and mean reward components earned by an empty answer
    rows: tuple[Row, ...]  #: policies that apply to at least one task
    not_applicable: tuple[str, ...]  #: policies that apply to no task
    ungraded: tuple[str, ...]  #: ids of tasks without a verdict on any wrong answer; they were not attacked

    def findings(self, bound: float = BOUND, luck: float = LUCK) -> dict[str, str]:
        """Return policy -> description of its problem; empty if there is no problem."""
        found: dict[str, str] = {}
        if not self.tasks:
            found["any wrong answer"] = f"without a verdict in all of {len(self.ungraded)} tasks"
        for row in self.rows:
            ungraded = len(row.failed) / row.tasks
            if row.must_pay and len(row.refused) / row.tasks > bound:
                found[row.policy] = f"refused in {len(row.refused)} of {row.tasks} tasks although right"
            elif not row.must_pay and row.share > bound:
                found[row.policy] = f"paid in {len(row.paid)} of {row.tasks} tasks without a solution"
            elif row.lucky / row.tasks > luck:
                found[row.policy] = f"right in {row.lucky} of {row.tasks} tasks: the answer is no secret"
            elif ungraded > bound:
                found[row.policy] = f"without a verdict in {len(row.failed)} of {row.tasks} tasks"
        return found


def attack(env: Env, *, count: int = 250, above: float = 0.0, on_policy: Callable[[str], None] | None = None) -> Attack:
    """Attack an environment.

    Args:
        env: Any environment; its running episode is abandoned.
        above: An episode counts as paid if the sum of its rewards exceeds this.
        on_policy: Called with the name of each policy before it plays.

    Raises:
        DataError: If the environment has no tasks, or fewer than ``num_tasks``.
    """
    # Several policies make the same attempts, so outcomes are kept.
    played: dict[tuple[str, tuple[Turn, ...]], Outcome] = {}

    def play(task: Task, attempt: Attempt) -> Outcome:
        key = task.id, attempt.turns
        if key not in played:
            played[key] = play_attempt(env, task, attempt)
        return played[key]

    every = targets(env, _tasks(env, count), above)
    # If even a plain wrong answer makes the episode fail, the task cannot grade any answer, so leave it out.
    known = [target for target in every if not play(target.task, Attempt((target.forms[0]("4711"),))).failure]
    rows: list[Row] = []
    for policy, attempts in POLICIES.items() if known else ():
        if on_policy is not None:
            on_policy(policy)
        rows.append(_row(policy, attempts, known, play, above))
    silent = [play(target.task, Attempt(("",))) for target in known]
    return Attack(
        tasks=len(known),
        nothing={"reward": _mean([one.reward for one in silent]), **_components(silent)},
        rows=tuple(row for row in rows if row.tasks),
        not_applicable=tuple(row.policy for row in rows if not row.tasks),
        ungraded=tuple(target.task.id for target in every if target not in known),
    )


#: all attacking policies by name; the policies of ``RIGHT_CHANGES`` must be paid, all other policies must not
POLICIES: Mapping[str, Policy] = {**EMPTY_POLICIES, **HIDDEN_ANSWERS, **WRONG_CHANGES, **RIGHT_CHANGES}


def _tasks(env: Env, count: int) -> list[Task]:
    total = env.num_tasks if env.num_tasks is not None else count
    if total == 0:
        raise DataError("the environment has no tasks to attack")
    tasks: list[Task] = []
    for number in range(min(count, total)):
        index = number * total // min(count, total)  # spread over all tasks
        try:
            tasks.append(env.task(index))
        except (IndexError, KeyError) as error:
            line = f"task({index}) raised {type(error).__name__}: {error}"
            raise DataError(f"{line}; num_tasks is {env.num_tasks}; set it to the number of tasks") from error
    return tasks


def _row(
    policy: str, attempts: Policy, known: Iterable[Target], play: Callable[[Task, Attempt], Outcome], above: float
) -> Row:
    must_pay = policy in RIGHT_CHANGES
    tasks = lucky = 0
    paid: dict[str, str] = {}
    failed: dict[str, str] = {}
    refused: list[str] = []
    for target in known:
        played = list(attempts(target))
        tasks += bool(played)
        was_lucky = False
        for attempt in played:
            outcome = play(target.task, attempt)
            if outcome.failure:
                failed.setdefault(target.task.id, outcome.failure)
            elif outcome.reward <= above:
                if must_pay:
                    refused.append(target.task.id)
            elif _is_lucky(attempt, outcome, target.task.answer):
                was_lucky = True
            else:
                paid.setdefault(target.task.id, _short(attempt))
        lucky += was_lucky
    return Row(
        policy=policy,
        must_pay=must_pay,
        tasks=tasks,
        paid=paid,
        lucky=lucky,
        refused=tuple(dict.fromkeys(refused)),
        failed=failed,
    )


def _is_lucky(attempt: Attempt, outcome: Outcome, answer: str) -> bool:
    # A guess is lucky if it equals the answer, apart from typesetting, unit and name, or if it lists only this
    # value. A copied text is lucky if it contains the answer.
    text = attempt.guess or outcome.copied
    guess, right, bare = (_NOISE.sub("", part).casefold() for part in (text, answer, _AROUND.sub("", answer)))
    parts = {_NOISE.sub("", part).casefold() for part in text.split(",")}
    known = {right, bare} - {""}
    contained = attempt.copied and bool(right) and right in guess
    return bool(known) and (guess in known or parts <= known or contained)


def _short(attempt: Attempt) -> str:
    line = " | ".join(turn if isinstance(turn, str) else "(what the environment said)" for turn in attempt.turns)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _components(outcomes: Sequence[Outcome]) -> dict[str, float]:
    names = sorted({name for outcome in outcomes for name in outcome.rewards})
    return {name: _mean([outcome.rewards.get(name, 0.0) for outcome in outcomes]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
