"""verl's vLLM server with turntree's drafter in it: ``rollout.name=vllm``.

verl starts and calls vLLM as usual; this adds the drafter's counters to each turn,
under the names that verl logs, and on the CPU replaces what needs a GPU.
Registered instead of verl's own replica, and otherwise identical.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise one core is pinned per worker, even a busy one
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of the processes that vLLM starts, unless the caller has set them."""


class DraftingVllmServer(vLLMHttpServer):
    """The class of the Ray actor; arguments are verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._on_cpu = get_platform().device_name == "cpu"
        if self._on_cpu:
            for name, value in _CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        super().__init__(*args, **kwargs)
        self._drafts = _drafts((self.config.engine_kwargs or {}).get("vllm"))

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> TokenOutput:
        """As verl's, with the drafter's counters if it drafts."""
        output = await super().generate(prompt_ids, sampling_params, request_id, *args, **kwargs)
        if self._drafts:
            ranks = await self.engine.collective_rpc("turntree_draft_stats", args=([request_id],))
            steps, drafted, accepted = ranks[0].get(request_id, (0, 0, 0))
            output.extra_fields |= {
                "spec_num_verify_steps": steps,
                "spec_num_draft_tokens": drafted,
                "spec_num_accepted_tokens": accepted,
            }
        return output

    def _get_worker_extension_cls(self) -> str:
        name = "CpuWorkerExtension" if self._on_cpu else "DraftingWorkerExtension"
        return f"turntree.agents.verl.serving.vllm_worker.{name}"


class DraftingVllmReplica(vLLMReplica):
    """Starts ``DraftingVllmServer``; arguments are verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(DraftingVllmServer)


def _drafts(engine_kwargs: Mapping[str, Any] | None) -> bool:
    """Whether vLLM is given turntree's drafter."""
    from turntree.agents.engines.vllm.settings import DRAFTER

    speculative = (engine_kwargs or {}).get("speculative_config") or {}
    return isinstance(speculative, Mapping) and speculative.get("model") == DRAFTER
