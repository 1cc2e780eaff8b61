from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import randbits
from typing import Any

from turntree.agents.engines.served.config import ServedConfig
from turntree.agents.engines.vllm.overlap.arguments import on_accelerator

#: vLLM's arguments that engine_args may not set
_OURS = ("model", "logprobs_mode", "max_logprobs", "worker_extension_cls", "speculative_config")
WORKER_EXTENSION = "turntree.agents.engines.vllm.worker.WorkerExtension"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(ServedConfig):
    """Settings of a vLLM engine in this process."""

    speculative_config: Mapping[str, Any] | None = None
    """vLLM's ``speculative_config``; ``None`` decodes plainly."""
    enforce_eager: bool | None = None
    """Do not compile the model; ``None`` compiles on an accelerator."""
    kv_cache_bytes: int | None = None
    """Memory for keys and values, in bytes; ``None`` leaves the size to vLLM."""
    start_seconds: float = 600.0
    """Time limit for starting the engine, in seconds."""

    def __post_init__(self) -> None:
        self._check({}, _OURS, "speculation is the field speculative_config")

    def to_engine_args(self, model: str, *, on_cpu: bool) -> dict[str, Any]:
        """Return the arguments of ``AsyncEngineArgs``."""
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
            # After engine_args: turntree's conversion of answers depends on these.
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
