"""The attempts of an attack. An attempt is a script of turns for one episode; its last turn is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turntree.envs.checking.script import calls_of
from turntree.envs.env import Env
from turntree.envs.message import Role
from turntree.envs.task import Task

MAX_TURNS = 24  #: turns after which an attempt is abandoned if the episode has not ended
Form = Callable[[str], str]  #: answer -> turn that states the answer, for example in a ``\boxed{}``
Turn = str | Callable[[str], str]  #: a turn, or a function that makes it from the environment's last message


class Attempt(NamedTuple):
    """The turns of a policy in one episode."""

    turns: tuple[Turn, ...]  #: at least one turn; the last turn is repeated until the episode ends
    guess: str = ""  #: an answer that may be right by luck, or a copied text that may contain the right answer
    copied: bool = False  #: whether ``guess`` is a copied text


class Outcome(NamedTuple):
    reward: float  #: sum over the turns
    rewards: dict[str, float]  #: named components at the end
    failure: str  #: the reason why the episode could not be graded; empty if it was graded
    copied: str  #: the environment's message from which a turn was made; empty if no turn was made from a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task, and the facts about it that the attacking policies use."""

    task: Task
    opening: str  #: the first messages, without the system prompt
    system: str
    #: forms in which the environment pays a right answer; all known forms if no form was paid
    forms: tuple[Form, ...]
    solution: tuple[str, ...]  #: turns that the environment should pay; empty if unknown
    acts: bool  #: whether a turn of the solution calls a tool
    golds: tuple[str, ...]  #: the right answers of all attacked tasks, the most frequent first
    calls: tuple[str, ...]  #: one call of each tool; string arguments are the question

    def written(self, answer: str) -> Iterator[str]:
        return (form(answer) for form in self.forms)

    def guessed(self, answer: str) -> Iterator[Attempt]:
        return (Attempt((text,), answer) for text in self.written(answer))

    @property
    def answer(self) -> str:
        """The right answer, if it occurs in the only turn of the solution; else empty."""
        answer = self.task.answer
        return answer if len(self.solution) == 1 and answer and answer in self.solution[0] else ""


def play_attempt(env: Env, task: Task, attempt: Attempt) -> Outcome:
    """Play one episode of a task, always with the same seed; the running episode is abandoned."""
    env.reset(seed=0, options={"task": task})
    total, seen, copied = 0.0, "", ""
    info: dict[str, Any] = {}
    for number in range(MAX_TURNS):
        turn = attempt.turns[min(number, len(attempt.turns) - 1)]
        if not isinstance(turn, str):
            copied, turn = copied or seen, turn(copied or seen)
        seen, reward, terminated, truncated, info = env.step(turn)
        total += reward
        if terminated or truncated:
            break
    return Outcome(total, info["rewards"], info["failure"], copied)


#: by name, the forms in which common environments read an answer
FORMS: Mapping[str, Form] = {
    "box": lambda answer: rf"So the answer is \boxed{{{answer}}}",
    "mark": lambda answer: f"That is the answer.\n#### {answer}",
    "tag": lambda answer: f"<answer>{answer}</answer>",
    "bare": lambda answer: answer,
    "words": lambda answer: f"The answer is {answer}",
}
_PROBED = 8  #: number of tasks whose right answers are played to find the forms that are paid
_MAX_TEXT = 400  #: characters of a question that are passed to a tool


def targets(env: Env, tasks: Sequence[Task], above: float) -> list[Target]:
    """Collect what attackers know about tasks.

    Args:
        env: Any environment; its running episode is abandoned.
        above: The reward above which an attempt counts as paid.
    """
    forms = paid_forms(env, tasks[:_PROBED], above)
    golds = Counter(task.answer for task in tasks if task.answer)
    ranked = tuple(answer for answer, _ in golds.most_common())
    return [_target(env, task, forms, ranked) for task in tasks]


def paid_forms(env: Env, tasks: Sequence[Task], above: float) -> tuple[Form, ...]:
    """Return the forms of ``FORMS`` in which right answers are paid, at most two, the best first."""
    paid: Counter[str] = Counter()
    for task in tasks:
        for name, form in FORMS.items() if task.answer else ():
            paid[name] += play_attempt(env, task, Attempt((form(task.answer),))).reward > above
    return tuple(FORMS[name] for name, count in paid.most_common(2) if count)


def _target(env: Env, task: Task, forms: tuple[Form, ...], golds: tuple[str, ...]) -> Target:
    env.reset(seed=0, options={"task": task})
    solution = tuple(env.solution())
    # A solution of one turn shows the form that the environment's author expects. Without a solution, write the answer
    # in a known form.
    if len(solution) == 1 and task.answer and task.answer in solution[0]:
        forms = (_form_of(solution[0], task.answer),)
    elif not solution and forms and task.answer:
        solution = (forms[0](task.answer),)
    opening = "\n\n".join(message.content for message in env.messages if message.role is not Role.SYSTEM)
    return Target(
        task=task,
        opening=opening,
        system=env.system_prompt,
        forms=forms or tuple(FORMS.values()),
        solution=solution,
        acts=any(env.parser.parse(turn).calls for turn in solution),
        golds=golds,
        calls=tuple(calls_of(env, env.offered_tools, task.prompt[:_MAX_TEXT])),
    )


def _form_of(turn: str, answer: str) -> Form:
    before, _, after = turn.rpartition(answer)
    return lambda other: f"{before}{other}{after}"
