"""Names by which the processes of a training find each other."""

from __future__ import annotations

import math
from typing import Any

ROLLOUT_NAME = "turntree"
"""Value of ``actor_rollout_ref.rollout.name`` that selects turntree's engine."""
ENGINES = (ROLLOUT_NAME, "vllm", "sglang")
"""Values of ``rollout.name`` whose servers sample turntree's turns and save a part of each checkpoint."""
REPLICA_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
"""Settings of ``actor_rollout_ref.rollout`` whose product is a replica's number of devices; 1 if unset."""


def replica_count(config: Any) -> int:
    """Return the number of rollout replicas of a training; ``config`` is verl's whole configuration."""
    rollout = config.actor_rollout_ref.rollout
    shares_devices = config.actor_rollout_ref.get("hybrid_engine", True)  # with the trainer
    section = config.trainer if shares_devices else rollout
    devices: int = section.nnodes * section.n_gpus_per_node
    return devices // math.prod(int(rollout.get(size) or 1) for size in REPLICA_SIZES)


def server_name(replica_rank: int, suffix: str = "", *, backend: str = ROLLOUT_NAME) -> str:
    """Return the name of the Ray actor that serves a replica; the first node's actor if verl starts one per node.

    Args:
        backend: ``rollout.name``.

    Example:
        >>> server_name(1), server_name(1, backend="vllm")
        ('turntree_server_1', 'vllm_server_1_0')
    """
    node = "" if backend == ROLLOUT_NAME else "_0"
    return f"{backend}_server_{replica_rank}{node}{suffix}"
