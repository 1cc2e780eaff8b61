"""Grade a policy's answer with the rewards package.

Invariant: an answer that could not be graded never counts as wrong. ``grade_answer`` raises instead, so the episode
ends as a failure and is left out of training.
"""

from __future__ import annotations

from turntree.envs.errors import UngradedAnswer
from turntree.envs.message import Reply
from turntree.envs.task import Task
from turntree.rewards import EXACT, AnswerFormat, Score, final_answer, same_number, score
from turntree.rewards.reading.thoughts import without_thoughts
from turntree.rewards.reading.visible import without_comments, without_hidden


def grade_answer(text: str, task: Task, answer_format: AnswerFormat | str = EXACT) -> Score:
    """Compare the answer in a text with the task's answer; a repetition of the question does not count as an answer.

    Args:
        answer_format: Answer format of the data set, or its name.

    Returns:
        A score whose ``correct`` is true or false.

    Raises:
        UngradedAnswer: If the two answers could not be compared.
    """
    result = score(text, task.answer, answer_format, question=task.prompt)
    if result.correct is None:
        raise UngradedAnswer(f"the answer to {task.id} could not be graded ({result.status}): {result.answer!r:.200}")
    return result


def score_final_answer(text: str, gold: str) -> Reply:
    """End the episode with reward 1 if the text answers ``#### x`` with the gold number, else 0."""
    answer = final_answer(visible(text))
    correct = float(answer is not None and same_number(answer, gold))
    return Reply(reward=correct, done=True, rewards={"correct": correct})


def visible(text: str) -> str:
    """Return the part of a turn that counts, without thoughts, comments and text that LaTeX hides.

    >>> visible("<think>#### 7</think>#### 8<!-- #### 9 -->")
    '#### 8'
    """
    return without_hidden(without_comments(without_thoughts(text)[0]))
