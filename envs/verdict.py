"""The verdict of the rewards package on what a policy said.

Invariant: an answer that could not be judged is never wrong in silence. It
raises, so the episode ends as a failure and is left out of training.
"""

from __future__ import annotations

from turntree.envs.errors import UndecidedAnswer
from turntree.envs.task import Task
from turntree.rewards import EXACT, Contract, Score, score


def judge_answer(text: str, task: Task, contract: Contract | str = EXACT) -> Score:
    """Compare the answer in a text with the task's; giving the question back is no answer.

    Args:
        text: What the policy itself said.
        task: Its ``answer`` is the right one.
        contract: Rules of the data set, or its name.

    Returns:
        A score whose ``correct`` is true or false.

    Raises:
        UndecidedAnswer: If the two could not be compared.
    """
    result = score(text, task.answer, contract, question=task.prompt)
    if result.correct is None:
        raise UndecidedAnswer(f"the answer to {task.id} could not be judged ({result.status}): {result.answer!r:.200}")
    return result
