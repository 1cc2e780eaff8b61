"""Names by which the processes of a training find each other."""

from __future__ import annotations

ROLLOUT_NAME = "turntree"
"""Value of ``actor_rollout_ref.rollout.name`` that selects turntree's engine."""


def server_name(replica_rank: int, suffix: str = "") -> str:
    """Name of the Ray actor that serves a replica."""
    return f"turntree_server_{replica_rank}{suffix}"
