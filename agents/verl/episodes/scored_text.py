"""The policy's own text in an episode, for verl's reward loop.

verl decodes the whole response, including tool output, as the solution. Invariant: a sample built here holds only the
policy's own text. Rows that do not mark the policy's own text are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.scoring.policy_sample import policy_sample
from turntree.agents.verl.config.sections import ConfigError
from turntree.rewards import Sample

SAMPLE = "turntree_sample"  #: extra field of an episode's output with its sample; ``None`` if the episode failed


def sample_to_dict(episode: Episode) -> dict[str, Any] | None:
    if episode.stop_reason is StopReason.FAILURE:
        return None
    values = asdict(policy_sample(episode))
    return {**values, "turns": list(values["turns"])}


def sample_of_row(
    data_source: str, solution: str, gold: str, extra_info: Mapping[str, Any], num_turns: int | None
) -> Sample | None:
    """Build the sample to score from a row of verl; ``None`` if the episode failed.

    Args:
        extra_info: Column ``extra_info`` with the extra fields of the agent loop's output; ``question`` is the prompt.
        num_turns: Number of messages of the dialogue, including the prompt; ``None`` if verl does not report it.

    Raises:
        ConfigError: If the response mixes the policy's text with other text.
    """
    if SAMPLE in extra_info:
        values = extra_info[SAMPLE]
        return None if values is None else Sample(**{**values, "turns": tuple(values["turns"])})
    if num_turns is not None and num_turns > 2:
        raise ConfigError(
            f"a dialogue of {num_turns} messages was played by a loop that does not mark the policy's own text, so "
            "tool output would be scored; use the agent loop turntree_env"
        )
    return Sample(
        turns=(solution,),
        gold=gold,
        question=str(extra_info.get("question", "")),
        data_source=data_source,
        task_id=str(extra_info.get("task_id", "")),
        metadata=dict(extra_info.get("metadata") or {}),
    )
