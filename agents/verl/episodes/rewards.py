"""A reward function for verl: ``reward.custom_reward_function`` with path ``pkg://turntree.agents.verl.episodes.rewards``.

Set ``name`` to ``compute_score`` or ``compute_score_async``. The async version does not block one of verl's threads
while it compares answers. Every result has the same keys; all values are numbers except ``status``, ``answer`` and
``method``.

An ungraded sample (one whose answer could not be compared) is left out of training and never counts as wrong. If
turntree's agent loop played the episode, the result has ``ungraded`` 1 and the loop masks the episode. verl's own loops
cannot mask, so ``Ungraded`` is raised, and verl's V1 trainers continue without the sample.
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


class Ungraded(AgentError):
    """An answer could not be graded."""


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
    """Score one response; ``rewards`` and ``answer_format`` come from ``reward_kwargs``, as in ``Scorer``.

    Returns:
        ``score``, ``acc`` (1 if the answer is right), ``ungraded``, ``answered``, ``suspect``, ``status``, ``answer``,
        ``method``, and ``reward_NAME`` for each reward.

    Raises:
        UnknownAnswerFormat: If the data set has no answer format and ``answer_format`` names none.
        ConfigError: If the loop that played the dialogue did not separate the policy's text from tool output, or a
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
    """Run ``compute_score`` on an event loop."""
    scorer = _scorer(rewards, answer_format)
    sample = _sample(data_source, solution_str, ground_truth, extra_info)
    scored = (await scorer.ascore([sample]))[0] if sample is not None else None
    return result(scorer, scored, masks=SAMPLE in (extra_info or {}))


def result(scorer: Scorer, scored: Scored | None, *, masks: bool) -> dict[str, Any]:
    """Return verl's result of one sample; ``scored`` is ``None`` for an episode that failed."""
    # ``masks``: whether the loop that played the episode masks ungraded samples; if not, ``Ungraded`` is raised.
    ungraded = scored is None or scored.reward is None
    answer = scored.answer if scored is not None else None
    status = "failure" if scored is None else str(answer.status) if answer is not None else ""
    if ungraded and not masks:
        open_parts = ", ".join(scored.ungraded) if scored is not None else "all"
        raise Ungraded(f"{open_parts} could not be graded ({status}); verl leaves this sample out")
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
    scorer = Scorer(json.loads(rewards) or DEFAULT_REWARDS, answer_format=answer_format)
    if scorer.group_names:
        raise ConfigError(
            f"verl's reward loop scores one sample at a time, but {', '.join(scorer.group_names)} need all samples "
            "of a task; set them in turntree.rewards, which turntree's agent-loop manager reads"
        )
    return scorer


def _sample(data_source: str, solution: str, gold: Any, extra_info: Mapping[str, Any] | None) -> Sample | None:
    extra = extra_info or {}
    return sample_of_row(data_source, solution, str(gold), extra, extra.get("num_turns"))
