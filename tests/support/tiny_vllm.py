"""vLLM on the CPU: what its processes need, and a policy that plays with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_llama import random_llama

ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
"""Of a process that starts vLLM."""
ONE_PROCESS = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The same; an engine is one process as on a GPU, and starts in half the time."""
MEMORY = {"kv_cache_memory_bytes": 1 << 26, "block_size": 32}
"""Arguments of an engine that plans for no more than a test needs."""


def save_policy(folder: Path, vocabulary: int, *, seed: int = 0, **settings: Any) -> Path:
    """Save a Llama that is small, and sure enough of itself that drafts come true; heads of 32 are vLLM's least."""
    fields = {"hidden_size": 64, "max_position_embeddings": 512, "initializer_range": 0.2}
    random_llama(vocabulary, seed=seed, **fields | settings).save_pretrained(folder)
    return folder
