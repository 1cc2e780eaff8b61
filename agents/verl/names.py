"""Names by which the processes of a training find each other."""

from __future__ import annotations

import math
from typing import Any

ROLLOUT_NAME = "turntree"  #: value of ``actor_rollout_ref.rollout.name`` that selects turntree's engine
#: engines whose servers play turntree's turns and add their state to checkpoints
ENGINES = (ROLLOUT_NAME, "vllm", "sglang")
#: settings of ``rollout`` whose product is the number of devices of a replica; an unset size counts as 1
REPLICA_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


def replica_count(config: Any) -> int:
    """Return the number of rollout replicas of a training, from verl's whole configuration."""
    rollout = config.actor_rollout_ref.rollout
    beside = config.actor_rollout_ref.get("hybrid_engine", True)  # else replicas have their own devices
    where = config.trainer if beside else rollout
    devices: int = where.nnodes * where.n_gpus_per_node
    return devices // math.prod(int(rollout.get(size) or 1) for size in REPLICA_SIZES)


def server_name(replica_rank: int, suffix: str = "", *, backend: str = ROLLOUT_NAME) -> str:
    """Return the name of a replica's server, a Ray actor; if verl starts one server per node, the first node's.

    >>> server_name(1), server_name(1, backend="vllm")
    ('turntree_server_1', 'vllm_server_1_0')
    """
    node = "" if backend == ROLLOUT_NAME else "_0"
    return f"{backend}_server_{replica_rank}{node}{suffix}"
