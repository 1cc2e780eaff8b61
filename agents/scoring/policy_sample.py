"""The sample of an episode that reward functions score: the policy's own text, and nothing else.

Invariant: no text of a tool, of the user or of the environment gets into a
sample's turns, so that it cannot change a reward, whatever it echoes.
"""

from __future__ import annotations

from typing import Any

from turntree.agents.episodes.episode import Episode
from turntree.envs.message import Message, Role
from turntree.rewards import Sample

ENVIRONMENT_REWARD = "environment_reward"
"""Key of ``Sample.metadata``: the environment's own reward, summed over the turns."""
_ERROR = "Error:"
"""Prefix of a tool message whose call failed by the policy's fault, see ``envs.tool_run``."""


def policy_sample(episode: Episode) -> Sample:
    """Extract the policy's part of an episode.

    Args:
        episode: A finished one.

    Returns:
        Its turns as they were sampled; gold answer, data set and metadata are those of the task.
    """
    task = episode.task
    own: dict[str, Any] = {ENVIRONMENT_REWARD: episode.reward}
    answers = [message for message in episode.messages if message.role is Role.ASSISTANT]
    return Sample(
        turns=tuple(turn.text for turn in episode.turns),
        gold=task.answer if task is not None else "",
        question=task.prompt if task is not None else "",
        data_source=task.data_source if task is not None else "",
        task_id=task.id if task is not None else "",
        tool_calls=sum(len(message.tool_calls) for message in answers),
        tool_errors=sum(map(_is_tool_error, episode.messages)),
        truncated=episode.stop_reason.is_truncated(),
        answered=not episode.turns or not _calls_tool(episode),
        metadata={**(task.metadata if task is not None else {}), **own},
    )


def _calls_tool(episode: Episode) -> bool:
    """Whether the last turn was taken as a tool call, a malformed one included."""
    answered_by_tool = any(message.role is Role.TOOL for message in episode.turns[-1].observation)
    answers = [message for message in episode.messages if message.role is Role.ASSISTANT]
    return answered_by_tool or bool(answers and answers[-1].tool_calls)


def _is_tool_error(message: Message) -> bool:
    return message.role is Role.TOOL and message.content.startswith(_ERROR)
