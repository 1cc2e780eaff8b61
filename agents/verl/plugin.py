"""The plugin that verl loads in every process (entry-point group ``verl.plugins``).

It registers the rollout backend ``turntree`` and turntree's replicas for verl's ``vllm`` and ``sglang``. On a machine
without an accelerator the plugin also selects the CPU platform and its patches. ``TURNTREE_VERL_CPU`` overrides the
detection: ``1`` trains on the CPU, ``0`` leaves verl's platform unchanged.
"""

from __future__ import annotations

import logging
import os

from turntree.agents.verl.names import ROLLOUT_NAME

logger = logging.getLogger(__name__)


def register() -> None:
    """Register turntree's additions to verl; a second call changes nothing."""
    if trains_on_cpu():
        select_cpu_platform()
    _register_rollout()


def trains_on_cpu() -> bool:
    """Return ``TURNTREE_VERL_CPU`` if it is set, else whether there is no accelerator."""
    choice = os.environ.get("TURNTREE_VERL_CPU", "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"TURNTREE_VERL_CPU must be 0, 1 or unset, got {choice!r}")
    if choice:
        return choice == "1"
    from verl.plugin.platform import PlatformRegistry

    # verl's own detection also finds accelerators that Ray hides from actors without a reserved accelerator.
    platforms = (PlatformRegistry.get(name) for name in PlatformRegistry.registered_names() if name != "cpu")
    return not any(platform().is_platform_available(use_smi_check=True) for platform in platforms if platform)


def select_cpu_platform() -> None:
    from verl.plugin.platform import PlatformRegistry, set_platform

    from turntree.agents.verl.patches import apply_cpu_patches
    from turntree.agents.verl.platform_cpu import PlatformCPU

    if PlatformRegistry.get("cpu") is not PlatformCPU:
        PlatformRegistry.register(platform="cpu")(PlatformCPU)
        set_platform(PlatformCPU())
    # verl registers its engines only for CUDA and NPU. This switch selects the CUDA engines, which take their device
    # from the platform.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    apply_cpu_patches()


def _register_rollout() -> None:
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)
    _ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "turntree.agents.verl.serving.local.WeightSender"
    RolloutReplicaRegistry.register("vllm", _load_vllm_replica)
    _ROLLOUT_REGISTRY[("vllm", "async")] = "turntree.agents.verl.serving.vllm_weights.VllmWeightSender"
    RolloutReplicaRegistry.register("sglang", _load_sglang_replica)
    _ROLLOUT_REGISTRY[("sglang", "async")] = "turntree.agents.verl.serving.sglang_weights.SglangWeightSender"


def _load_replica() -> type:
    from turntree.agents.verl.serving.local import TurntreeReplica

    return TurntreeReplica


def _load_vllm_replica() -> type:
    from turntree.agents.verl.serving.vllm_replica import DraftingVllmReplica

    return DraftingVllmReplica


def _load_sglang_replica() -> type:
    from verl.workers.rollout.replica import _load_sglang

    _load_sglang()  # verl prepares the process for importing SGLang there
    from turntree.agents.verl.serving.sglang_replica import DraftingSglangReplica

    return DraftingSglangReplica


# verl ignores a plugin's exceptions, so log them first.
try:
    register()
except Exception:
    logger.exception("turntree's verl plugin could not be loaded; verl continues without it")
    raise
