"""Extracts the sample that reward functions score from an episode: only the policy's own text.

Invariant: a sample's turns contain no text of a tool, a user or the environment, so such text cannot change a reward.
"""

from __future__ import annotations

from typing import Any

from turntree.agents.episodes.episode import Episode
from turntree.envs.message import Role
from turntree.rewards import Sample

# Key of ``Sample.metadata``: the environment's own reward, summed over the turns.
ENVIRONMENT_REWARD = "environment_reward"
_ERROR = "Error:"  #: prefix of a tool message if the call failed through the policy's fault, see ``envs.tool_run``


def policy_sample(episode: Episode) -> Sample:
    """Extract the policy's part of an episode.

    Args:
        episode: A finished episode.

    Returns:
        The turns as they were sampled, with the task's gold answer, data set and metadata.
    """
    task = episode.task
    environment: dict[str, Any] = {ENVIRONMENT_REWARD: episode.reward}
    answers = [message for message in episode.messages if message.role is Role.ASSISTANT]
    results = [message.content for message in episode.messages if message.role is Role.TOOL]
    # A last turn that calls a tool is not an answer. A malformed call counts too: it also gets a tool message.
    last = episode.turns[-1].observation if episode.turns else ()
    ends_with_call = any(message.role is Role.TOOL for message in last) or bool(answers and answers[-1].tool_calls)
    return Sample(
        turns=tuple(turn.text for turn in episode.turns),
        gold=task.answer if task is not None else "",
        question=task.prompt if task is not None else "",
        data_source=task.data_source if task is not None else "",
        task_id=task.id if task is not None else "",
        tool_calls=sum(len(message.tool_calls) for message in answers),
        tool_errors=sum(result.startswith(_ERROR) for result in results),
        truncated=episode.stop_reason.is_truncated(),
        answered=not (episode.turns and ends_with_call),
        metadata={**(task.metadata if task is not None else {}), **environment},
    )
