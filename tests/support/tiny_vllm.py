from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_llama import random_llama

if TYPE_CHECKING:
    import pytest

    from turntree.agents.engines.vllm.engine import VllmEngine

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no process for the worker, as on a GPU
    "TORCHDYNAMO_DISABLE": "1",  # vLLM compiles some functions of its sampler in eager engines too
}
MEMORY = {"kv_cache_memory_bytes": 1 << 26, "block_size": 32}


def save_policy(folder: Path, vocabulary: int, *, seed: int = 0, **settings: Any) -> Path:
    """Save a small Llama whose drafts are accepted often; vLLM needs heads of at least 32."""
    fields = {"hidden_size": 64, "max_position_embeddings": 512, "initializer_range": 0.2}
    random_llama(vocabulary, seed=seed, **fields | settings).save_pretrained(folder)
    return folder


@contextmanager
def in_this_process(**more: str) -> Iterator[pytest.MonkeyPatch]:
    """Set the environment of an in-process engine; afterwards vLLM reads its variables again."""
    import pytest
    import vllm.envs

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, **more}.items():
            patch.setenv(name, value)
        yield patch
    vllm.envs.disable_envs_cache()  # an engine that starts keeps them for good


@contextmanager
def drafting_engine(folder: Path, *, max_batch: int, **engine_args: Any) -> Iterator[VllmEngine]:
    import pytest
    from engine_checks import CONTEXT

    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine
    from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

    config = VllmEngineConfig(
        max_batch=max_batch,
        max_context=CONTEXT,
        dtype="float32",
        kv_cache_bytes=1 << 26,
        speculative_config=speculative_config(4),
        seed=0,
        engine_args={
            "skip_tokenizer_init": True,
            "block_size": 32,
            "scheduling_policy": "priority",
            "additional_config": DrafterSettings(min_probability=0.02, adaptive=False).to_additional_config(),
            **engine_args,
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with VllmEngine(folder, config=config) as started:
            yield started
