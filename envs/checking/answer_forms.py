"""How to answer an environment: with the turns of its ``solution``, or with the answer in a form that it pays.

Not covered: an author's own answer form without a ``solution``. No right answer is known then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from turntree.envs.checking.attempts import Attempt, Form, Target, play_attempt
from turntree.envs.checking.script import calls_of
from turntree.envs.env import Env
from turntree.envs.message import Role
from turntree.envs.task import Task

#: forms in which common environments read an answer
FORMS: Mapping[str, Form] = {
    "box": lambda answer: rf"So the answer is \boxed{{{answer}}}",
    "mark": lambda answer: f"That is the answer.\n#### {answer}",
    "tag": lambda answer: f"<answer>{answer}</answer>",
    "bare": lambda answer: answer,
    "words": lambda answer: f"The answer is {answer}",
}
_PROBED = 8
_MOST_TEXT = 400  #: characters of a question that are passed to a tool


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
        calls=tuple(calls_of(env, env.offered_tools, task.prompt[:_MOST_TEXT])),
    )


def _form_of(turn: str, answer: str) -> Form:
    before, _, after = turn.rpartition(answer)
    return lambda other: f"{before}{other}{after}"
