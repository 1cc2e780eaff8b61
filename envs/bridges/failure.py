"""The error raised to a trainer that has no way to leave an episode out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.envs.errors import EnvError


class EpisodeFailure(EnvError):
    """The infrastructure failed: the episode is no verdict on the policy and must not become a reward of 0."""


def require_verdict(info: Mapping[str, Any]) -> None:
    """Raise if the episode failed.

    Args:
        info: What ``Env.step`` returned.

    Raises:
        EpisodeFailure: If it failed.
    """
    if info["failure"]:
        raise EpisodeFailure(f"task {info['task_id']}: {info['failure']}")
