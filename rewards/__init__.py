"""Rewards: extract answers from text, compare them with gold answers, combine rewards in rubrics (weighted sums).

This package depends on neither environments nor models.
"""

from turntree.rewards import components  # registers the rewards that ship with the package
from turntree.rewards.answer_format import EXACT, AnswerFormat, Kind, answer_format_for, answer_formats
from turntree.rewards.errors import (
    IsolationError,
    MissingQuestion,
    RewardDefinitionError,
    RewardError,
    UnknownAnswerFormat,
    UnknownReward,
)
from turntree.rewards.grader import VERIFIER_VERSION, Grader, default_grader
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.reading.answer import final_answer, parse_number, same_number
from turntree.rewards.reading.extract import Answer, Extraction, extract
from turntree.rewards.registry import Reward, get_reward, reward, reward_names
from turntree.rewards.result import Score, Status, Verdict
from turntree.rewards.rubric import Part, Rubric, RubricResult
from turntree.rewards.sample import Sample
from turntree.rewards.score import ascore_batch, score, score_batch

__all__ = [
    "EXACT",
    "VERIFIER_VERSION",
    "Answer",
    "AnswerFormat",
    "Extraction",
    "Grader",
    "IsolationError",
    "Kind",
    "MissingQuestion",
    "Part",
    "PoolSettings",
    "Reward",
    "RewardDefinitionError",
    "RewardError",
    "Rubric",
    "RubricResult",
    "Sample",
    "Score",
    "Status",
    "UnknownAnswerFormat",
    "UnknownReward",
    "Verdict",
    "answer_format_for",
    "answer_formats",
    "ascore_batch",
    "components",
    "default_grader",
    "extract",
    "final_answer",
    "get_reward",
    "parse_number",
    "reward",
    "reward_names",
    "same_number",
    "score",
    "score_batch",
]
