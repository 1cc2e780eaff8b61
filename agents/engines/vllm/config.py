from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from secrets import randbits
from typing import Any

from turntree.agents.engines.served.settings import ServedConfig
from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.graphs import graph_sizes
from turntree.agents.engines.vllm.settings import SECTION, DrafterSettings, drafts_by_turntree

SCHEDULER = "turntree.agents.engines.vllm.overlap.scheduler.DraftScheduler"
_STEP_TOKENS = 8192  #: Default limit of tokens per step: draft positions and prompt tokens of all requests.


def on_accelerator(arguments: Mapping[str, Any], *, rows: int, ranks: int) -> dict[str, Any]:
    """Return vLLM's arguments with the defaults of turntree's drafter on an accelerator.

    Arguments that the caller set are kept, and arguments for other drafters are returned unchanged. ``rows`` is the
    maximum number of requests per step, ``ranks`` the number of processes that share the model.
    """
    speculative = arguments.get("speculative_config")
    if speculative is None or not drafts_by_turntree(speculative):
        return dict(arguments)
    completed = dict(arguments)
    longest = int(speculative["num_speculative_tokens"])
    completed.setdefault("compilation_config", graph_sizes(rows, longest))
    completed.setdefault("max_num_batched_tokens", _STEP_TOKENS)
    if (
        ranks == 1  # several ranks would need the same drafts at the same time
        and compat.is_checked()  # the interface of ngram_gpu differs in other versions
        and completed.get("async_scheduling") is not False
        and "scheduler_cls" not in completed
    ):
        settings = DrafterSettings.from_additional_config(completed.get("additional_config"))
        completed["additional_config"] = {
            **(completed.get("additional_config") or {}),
            **settings.to_additional_config(),
        }
        completed["scheduler_cls"] = SCHEDULER
        # vLLM refuses custom drafters under asynchronous scheduling. Select vLLM's drafter ngram_gpu instead:
        # `overlap/ngram_interface.py` substitutes turntree's drafter for its class.
        completed["speculative_config"] = {
            "method": "ngram_gpu",
            "num_speculative_tokens": longest,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        }
    return completed


def is_ours(vllm_config: Any) -> bool:
    # A user may want vLLM's own ngram_gpu: turntree replaces it only if additional_config has turntree's section.
    speculative, additional = vllm_config.speculative_config, vllm_config.additional_config
    return (
        speculative is not None
        and speculative.method == "ngram_gpu"
        and isinstance(additional, Mapping)
        and SECTION in additional
    )


#: vLLM's arguments that engine_args may not set
_RESERVED = ("model", "logprobs_mode", "max_logprobs", "worker_extension_cls", "speculative_config")
WORKER_EXTENSION = "turntree.agents.engines.vllm.worker.WorkerExtension"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(ServedConfig):
    """Settings of a vLLM engine in this process."""

    speculative_config: Mapping[str, Any] | None = None
    """vLLM's ``speculative_config``; ``None`` decodes without drafts."""
    enforce_eager: bool | None = None
    """Do not compile the model; ``None`` compiles on an accelerator."""
    kv_cache_bytes: int | None = None
    """Memory for keys and values, in bytes; ``None`` leaves the size to vLLM."""
    start_seconds: float = 600.0
    """Time limit for starting the engine, in seconds."""

    def __post_init__(self) -> None:
        # The text advises to set `speculative_config` as a field of this class, not in engine_args.
        self._check({}, _RESERVED, "speculation is the field speculative_config")

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
            # These override engine_args: turntree needs them to convert vLLM's outputs.
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
