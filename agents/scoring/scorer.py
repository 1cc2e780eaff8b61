"""Computes weighted sums of rewards that configurations and commands select by name.

Invariant: if an answer could not be graded, the sample's reward is ``None``, not 0.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

from turntree.agents.scoring.judge_settings import JUDGE, judging
from turntree.agents.scoring.policy_sample import ENVIRONMENT_REWARD
from turntree.envs.running.containment import contain
from turntree.rewards import (
    AnswerFormat,
    Part,
    Reward,
    RewardDefinitionError,
    Rubric,
    Sample,
    Score,
    UnknownAnswerFormat,
    UnknownReward,
    answer_format_for,
    answer_formats,
    ascore_batch,
    get_reward,
    reward,
    score_batch,
)
from turntree.rewards.score import warn_missing_question

ANSWER = "answer"  #: compares the last turn's answer with the gold answer
ENVIRONMENT = "environment"  #: the environment's own reward
_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A scorer's result for one sample."""

    reward: float | None  #: weighted sum; ``None`` if a reward with ``decides=True`` has no value
    parts: Mapping[str, float]  #: unweighted values by reward name; rewards without a value are left out
    ungraded: tuple[str, ...] = ()  #: rewards without a value
    answer: Score | None = None  #: the comparison of the answer; ``None`` if ``answer`` is not among the rewards
    environment: float = 0.0  #: weight of the environment's own reward in ``reward``, not the reward itself


class Scorer:
    """A rubric, and the answer formats used to compare answers.

    Args:
        rewards: For each name a weight or a mapping of the fields of ``Part``, for example ``{"answer": 1,
            "few_turns": {"weight": 0.1, "high": 0.5}}``. A reward with weight 0 is only logged. The name
            ``module:name`` first imports the module, which registers the reward. ``judge`` with ``criteria`` is a
            language-model judge (``JudgeSettings``).
        answer_format: Answer format for samples whose data set does not define one; ``None`` refuses such samples.
        imports: Whether names may import modules. Pass ``False`` for names from an HTTP request, so that only
            registered rewards are accepted.

    Raises:
        UnknownReward: If a name is not registered, or its module cannot or may not be imported.
        UnknownAnswerFormat: If ``answer_format`` is unknown.
        RewardDefinitionError: If the rewards cannot be combined.
    """

    def __init__(self, rewards: Mapping[str, Any], *, answer_format: str | None = None, imports: bool = True) -> None:
        self._parts = tuple(_part(name, value, imports=imports) for name, value in rewards.items())
        self._rubric = Rubric(self._parts)
        self._default = answer_format_for(answer_format) if answer_format is not None else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards, in order."""
        return self._rubric.names

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of rewards that need all samples of a task at once."""
        rewards = (part.reward for part in self._parts)
        return tuple(r.name for r in rewards if isinstance(r, Reward) and r.group and r.name != ANSWER)

    def answer_format_of(self, data_source: str) -> AnswerFormat:
        """Return the answer format of a data set.

        Raises:
            UnknownAnswerFormat: If the data set does not define a format and the scorer has no default format.
        """
        try:
            return answer_format_for(data_source)
        except UnknownAnswerFormat as error:
            if self._default is not None:
                return self._default
            raise UnknownAnswerFormat(
                f"the data set {data_source!r} has no answer format; set --answer-format or `answer_format` to one of "
                f"{', '.join(answer_format.name for answer_format in answer_formats())}"
            ) from error

    def score(self, samples: Sequence[Sample]) -> list[Scored]:
        """Score samples, with all samples of a task in one call; return one result per sample, in order.

        Raises:
            UnknownAnswerFormat: See ``answer_format_of``; only if ``answer`` is among the rewards.
        """
        if ANSWER not in self.names:
            return self._combine(samples, [None] * len(samples))
        return self._combine(samples, score_batch(**self._comparison(samples)))

    async def ascore(self, samples: Sequence[Sample]) -> list[Scored]:
        """Run ``score`` without blocking the event loop; reward functions run in threads."""
        answers: Sequence[Score | None] = [None] * len(samples)
        if ANSWER in self.names:
            answers = await ascore_batch(**self._comparison(samples))
        loop = asyncio.get_running_loop()
        combine = partial(self._combine, samples, answers)
        return await loop.run_in_executor(self._threads, contain, combine)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="turntree-rewards")

    def unasked(self, sample: Sample) -> bool:
        """Return whether a sample lacks the question that its answer format needs."""
        return ANSWER in self.names and not sample.question and self.answer_format_of(sample.data_source).needs_question

    def _comparison(self, samples: Sequence[Sample]) -> dict[str, Any]:
        for source in dict.fromkeys(sample.data_source for sample in samples if self.unasked(sample)):
            warn_missing_question(self.answer_format_of(source), "question")
        return {
            "predictions": [sample.answer_text for sample in samples],
            "golds": [sample.gold for sample in samples],
            "answer_format": [self.answer_format_of(sample.data_source) for sample in samples],
            "questions": [sample.question for sample in samples],
        }

    def _combine(self, samples: Sequence[Sample], answers: Sequence[Score | None]) -> list[Scored]:
        # Key the scores by the samples' identity, because a group may contain equal samples.
        scores = {id(sample): score for sample, score in zip(samples, answers, strict=True)}

        def answer(sample: Sample) -> float | None:
            score = scores[id(sample)]
            return None if score is None or score.correct is None else score.score

        # All answers have been compared already, so this reward function only looks up the scores.
        looked_up = Reward(name=ANSWER, function=answer, decides=True)
        parts = [replace(part, reward=looked_up) if _name(part) == ANSWER else part for part in self._parts]
        results = Rubric(parts).score(samples)
        environment_weight = sum(part.weight for part in self._parts if _name(part) == ENVIRONMENT)
        deciding = {_name(part) for part in self._parts if part.weight and _reward(part).decides}
        return [
            Scored(
                reward=None if deciding & set(result.ungraded) else result.reward,
                parts=result.parts,
                ungraded=result.ungraded,
                answer=score,
                environment=environment_weight,
            )
            for result, score in zip(results, answers, strict=True)
        ]


@reward(ENVIRONMENT, decides=True)
def environment(sample: Sample) -> float | None:
    """Return the environment's own reward; ``None`` for text without an environment."""
    value = sample.metadata.get(ENVIRONMENT_REWARD)
    return None if value is None else float(value)


def _part(name: str, value: Any, *, imports: bool) -> Part:
    module, _, reward_name = name.rpartition(":") if imports else ("", "", name)
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnknownReward(f"the module of the reward {name!r} cannot be imported: {error}") from error
    if not isinstance(value, Mapping):
        value = {"weight": value}
    known = [field.name for field in fields(Part) if field.name != "reward"]
    if reward_name == JUDGE and "criteria" in value:
        chosen = judging({key: setting for key, setting in value.items() if key not in known})
        value = {key: number for key, number in value.items() if key in known}
    else:
        chosen = get_reward(reward_name, load=imports)
    for key, number in value.items():
        if key not in known:
            raise RewardDefinitionError(
                f"reward {reward_name!r}: unknown key {key!r}; expected one of {', '.join(known)}"
            )
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise RewardDefinitionError(f"reward {reward_name!r}: {key} must be a number, got {number!r}")
    return Part(reward=chosen, **value)


def _reward(part: Part) -> Reward:
    assert isinstance(part.reward, Reward)
    return part.reward


def _name(part: Part) -> str:
    return _reward(part).name
