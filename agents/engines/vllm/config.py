"""Settings of a vLLM engine in this process, and their conversion to vLLM's own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import randbits
from typing import Any

from turntree.agents.engines.served.settings import ServedConfig
from turntree.agents.engines.vllm.overlap.arguments import on_accelerator

_OURS = ("model", "logprobs_mode", "max_logprobs", "worker_extension_cls", "speculative_config")
WORKER_EXTENSION = "turntree.agents.engines.vllm.worker.WorkerExtension"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(ServedConfig):
    """Size and behaviour of one engine."""

    speculative_config: Mapping[str, Any] | None = None
    """vLLM's ``speculative_config``; ``None`` decodes plainly. See ``drafter`` for turntree's."""
    enforce_eager: bool | None = None
    """Whether to skip compiling the model; ``None`` compiles on an accelerator."""
    kv_cache_bytes: int | None = None
    """Memory for keys and values; ``None`` leaves it to vLLM."""
    start_seconds: float = 600.0
    """Time limit of the engine's start."""

    def __post_init__(self) -> None:
        self._check({}, _OURS, "speculation is the field speculative_config")

    def to_engine_args(self, model: str, *, on_cpu: bool) -> dict[str, Any]:
        """Arguments of ``AsyncEngineArgs``.

        Args:
            model: Directory or Hugging Face id.
        """
        arguments: dict[str, Any] = {
            "model": model,
            "dtype": self.dtype,
            "max_num_seqs": self.max_batch,
            "max_model_len": self.max_context,
            "enforce_eager": on_cpu if self.enforce_eager is None else self.enforce_eager,
            "seed": randbits(31) if self.seed is None else self.seed,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            **self.engine_args,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "worker_extension_cls": WORKER_EXTENSION,
        }
        if self.kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = self.kv_cache_bytes
        if self.speculative_config is not None:
            arguments["speculative_config"] = dict(self.speculative_config)
        if on_cpu:
            return arguments
        ranks = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
        return on_accelerator(arguments, rows=self.max_batch, ranks=ranks)
