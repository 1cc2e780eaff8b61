from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.envs.errors import EnvError


class EpisodeFailure(EnvError):
    """The infrastructure failed. Raised to trainers that cannot leave an episode out, instead of a reward of 0."""


def require_verdict(info: Mapping[str, Any]) -> None:
    """Raise ``EpisodeFailure`` if the ``info`` of ``Env.step`` reports an infrastructure failure."""
    if info["failure"]:
        raise EpisodeFailure(f"task {info['task_id']}: {info['failure']}")
