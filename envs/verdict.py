"""The verdict of the rewards package on a text of the policy.

Invariant: an answer that could not be judged never silently counts as wrong. It
raises, so the episode ends as a failure and is left out of training.
"""

from __future__ import annotations

from turntree.envs.errors import UndecidedAnswer
from turntree.envs.task import Task
from turntree.rewards import EXACT, Contract, Score, score
from turntree.rewards.reading.thoughts import without_thoughts
from turntree.rewards.reading.visible import without_comments, without_hidden


def judge_answer(text: str, task: Task, contract: Contract | str = EXACT) -> Score:
    """Compare the answer in a text with the task's; repeating the question is no answer.

    Args:
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


def visible(text: str) -> str:
    """The part of a turn that counts: thoughts, comments and what LaTeX hides removed.

    >>> visible("<think>#### 7</think>#### 8<!-- #### 9 -->")
    '#### 8'
    """
    return without_hidden(without_comments(without_thoughts(text)[0]))
