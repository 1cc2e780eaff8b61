"""turntree's vLLM plugin, which vLLM loads in each of its processes by entry point.

The plugin ends engines when their server ends (``orphans``), refuses seeds that vLLM would ignore
(``drawing.model_runner``), and patches ``WorkerWrapperBase.init_device``. After ``init_device`` has created the model
runner, the patch repairs vLLM's CPU build, installs turntree's sampling (``drawing``) and CUDA graphs (``graphs``), and
passes the runner to turntree's drafter, if one is configured.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from turntree.agents.engines.vllm import compat, cpu_repair, graphs, orphans
from turntree.agents.engines.vllm.config import is_ours
from turntree.agents.engines.vllm.drawing import model_runner, reverified_prompts, seeded_draws
from turntree.agents.engines.vllm.overlap import ngram_interface
from turntree.agents.engines.vllm.overlap.drafter import OverlappedDrafter

logger = logging.getLogger(__name__)

_MARK = "turntree_plugin"


def register() -> None:
    """Install turntree's patches in this process; safe to call twice."""
    orphans.end_with_server()
    model_runner.refuse_seeds()
    wrapper = compat.worker_wrapper()
    original = wrapper.init_device
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_ours(self.vllm_config):
            ngram_interface.announce(OverlappedDrafter)
        result = original(self, *args, **kwargs)
        prepare(self.worker.model_runner)
        return result

    setattr(init_device, _MARK, True)
    wrapper.init_device = init_device


def prepare(runner: Any) -> None:
    """Prepare a model runner for turntree's drafts and seeds."""
    if runner.device.type == "cpu":
        cpu_repair.repair()
        cpu_repair.repair_reload(runner)
    if not compat.is_checked():
        logger.warning(model_runner.unchecked())
    elif hasattr(getattr(runner, "sampler", None), "topk_topp_sampler"):  # not in vLLM's second model runner
        seeded_draws.install(runner)
        reverified_prompts.install(runner)
        graphs.install(runner)
    bind = getattr(getattr(runner, "drafter", None), "bind", None)
    if bind is not None:
        bind(runner, leads=compat.drafts_here())
