from __future__ import annotations

from turntree.envs.message import Reply
from turntree.envs.verdict import visible
from turntree.rewards import final_answer, same_number


def score_final_answer(text: str, gold: str) -> Reply:
    """End the episode with reward 1 if the text answers ``#### x`` with the gold number, else 0."""
    answer = final_answer(visible(text))
    correct = float(answer is not None and same_number(answer, gold))
    return Reply(reward=correct, done=True, rewards={"correct": correct})
