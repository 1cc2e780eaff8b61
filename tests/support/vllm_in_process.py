"""vLLM's engine in this process, steps and all, for tests that look inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def start(folder: Path, patch: pytest.MonkeyPatch, settings: DrafterSettings, **arguments: Any) -> Any:
    """An ``LLM`` with turntree's drafter, float32, token ids in and out."""
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    from vllm import LLM

    return LLM(
        str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        speculative_config=speculative_config(8),
        additional_config=settings.to_additional_config(),
        **arguments,
    )


def drafter_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter


def say(llm: Any, prompts: Sequence[Sequence[int]], parameters: Any) -> list[Any]:
    """What each prompt is answered: vLLM's ``CompletionOutput``, in the order of the prompts."""
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [answer.outputs[0] for answer in llm.generate(asked, parameters, use_tqdm=False)]


def tokens_per_step(drafter: Any, before: dict[str, float]) -> float:
    now = drafter.stats()
    return float((now["tokens"] - before["tokens"]) / (now["rows"] - before["rows"]))
