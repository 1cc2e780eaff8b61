"""A reward function for verl: ``reward.custom_reward_function`` with path ``pkg://turntree.agents.verl.episodes.rewards``.

Name ``compute_score``, or ``compute_score_async``, which does not occupy a thread
of verl's while answers are compared. Every result has the same keys, all numbers
but ``status``, ``answer`` and ``method``.

A sample that cannot be verified again is left out of training and never counts as wrong. If
turntree's agent loop played the episode it is returned with ``ungraded`` 1 and
the loop masks it; other loops of verl have no mask, so ``Ungraded`` is raised,
upon which verl's V1 trainers go on without this sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from turntree.agents.errors import AgentError
from turntree.agents.scoring.scorer import ANSWER, Scored, Scorer
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.episodes.scored_text import SAMPLE, sample_of_row
from turntree.rewards import Sample

DEFAULT_REWARDS: Mapping[str, Any] = {ANSWER: 1.0}
"""The default reward."""


class Ungraded(AgentError):
    """An answer could not be verified again."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    rewards: Mapping[str, Any] | None = None,
    answer_format: str | None = None,
    **unused: Any,
) -> dict[str, Any]:
    """Score one response.

    Args:
        data_source: Data set of the row; it selects the rules of comparison.
        extra_info: Columns of the row and extra fields of the agent loop; the policy's own text is taken from
            them if turntree's loop played.
        rewards: As ``Scorer`` takes them, by ``reward_kwargs``; ``None`` compares the answer.
        answer_format: As ``Scorer`` takes it, by ``reward_kwargs``.

    Returns:
        ``score``, ``acc`` (1 where the answer is right), ``ungraded``, ``answered``, ``suspect``, ``status``,
        ``answer``, ``method``, and ``reward_NAME`` for each of the rewards.

    Raises:
        UnknownAnswerFormat: The data set has no rules of comparison and ``answer_format`` names no other.
        ConfigError: A dialogue was played by a loop that does not tell the policy's text from a tool's, or a
            reward needs all samples of a task.
        Ungraded: See the module's docstring.
    """
    scorer = _scorer(rewards, answer_format)
    sample = _sample(data_source, solution_str, ground_truth, extra_info)
    scored = scorer.score([sample])[0] if sample is not None else None
    return result(scorer, scored, masks=SAMPLE in (extra_info or {}))


async def compute_score_async(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    rewards: Mapping[str, Any] | None = None,
    answer_format: str | None = None,
    **unused: Any,
) -> dict[str, Any]:
    """``compute_score`` for an event loop, with the same arguments, results and errors."""
    scorer = _scorer(rewards, answer_format)
    sample = _sample(data_source, solution_str, ground_truth, extra_info)
    scored = (await scorer.ascore([sample]))[0] if sample is not None else None
    return result(scorer, scored, masks=SAMPLE in (extra_info or {}))


def result(scorer: Scorer, scored: Scored | None, *, masks: bool) -> dict[str, Any]:
    """verl's result of one sample.

    Args:
        scored: ``None`` for an episode that failed.
        masks: Whether the loop that played it masks ungraded samples.

    Raises:
        Ungraded: If it could not be verified again and is not masked.
    """
    ungraded = scored is None or scored.reward is None
    answer = scored.answer if scored is not None else None
    status = "failure" if scored is None else str(answer.status) if answer is not None else ""
    if ungraded and not masks:
        open_parts = ", ".join(scored.ungraded) if scored is not None else "all"
        raise Ungraded(f"{open_parts} could not be verified again ({status}); verl leaves this sample out")
    parts = scored.parts if scored is not None else {}
    return {
        "score": scored.reward if scored is not None and scored.reward is not None else 0.0,
        "acc": float(answer is not None and answer.correct is True),
        "ungraded": float(ungraded),
        "answered": float(answer is not None and answer.answer is not None),
        "suspect": float(answer is not None and bool(answer.flags)),
        "status": status,
        "answer": (answer.answer or "") if answer is not None else "",
        "method": answer.method if answer is not None else "",
        **{f"reward_{name}": parts.get(name, 0.0) for name in scorer.names},
    }


def _scorer(rewards: Mapping[str, Any] | None, answer_format: str | None) -> Scorer:
    return _known_scorer(json.dumps(plain(rewards), sort_keys=True), answer_format)


@lru_cache(maxsize=8)
def _known_scorer(rewards: str, answer_format: str | None) -> Scorer:
    """A scorer for single samples, as verl's reward loop gives them."""
    scorer = Scorer(json.loads(rewards) or DEFAULT_REWARDS, answer_format=answer_format)
    if scorer.group_names:
        raise ConfigError(
            f"verl's reward loop scores one sample at a time, and {', '.join(scorer.group_names)} need all samples "
            "of a task; name them in turntree.rewards, for turntree's agent-loop manager"
        )
    return scorer


def _sample(data_source: str, solution: str, gold: Any, extra_info: Mapping[str, Any] | None) -> Sample | None:
    extra = extra_info or {}
    return sample_of_row(data_source, solution, str(gold), extra, extra.get("num_turns"))
