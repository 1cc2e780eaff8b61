"""Every change that turntree makes to verl's own code, each for one upstream defect.

They are applied by the plugin, only on the CPU platform. A patch names the
versions that it was checked against and refuses any other, so that an upgrade
is a decision; ``tests/agents/verl/test_patches.py`` fails as soon as upstream
no longer has the defect. Nothing else in turntree assigns to a verl module.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from turntree.envs.errors import pip_install

VERSIONS = ("0.9.1",)
"""Versions of verl that the patches were checked against."""


def apply_cpu_patches() -> None:
    """Apply every patch that training on the CPU needs.

    Raises:
        RuntimeError: If the installed verl is not one of ``VERSIONS``.
    """
    installed = importlib.metadata.version("verl")
    if installed not in VERSIONS:
        raise RuntimeError(
            f"training on the CPU was checked with verl {', '.join(VERSIONS)}, and verl {installed} is "
            f"installed: {pip_install(f'verl=={VERSIONS[-1]}')}"
        )
    name_one_process_group_backend()
    keep_reference_policy_unpinned()
    load_critic_without_flash_attention()
    compute_log_probabilities_at_once()


def name_one_process_group_backend() -> None:
    """Default the process group's backend to ``cpu:gloo``.

    verl 0.9.1 builds ``cpu:gloo,{device}:{backend}``, which on the CPU names the
    device twice, and ``torch.distributed`` refuses that.
    """
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray
    if _is_ours(original):
        return

    @_ours
    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize


def keep_reference_policy_unpinned() -> None:
    """Disable FSDP2's CPU offloading, which verl forces on the reference policy.

    verl 0.9.1 builds ``CPUOffloadPolicy(pin_memory=True)`` for every forward-only
    model; pinning memory needs an accelerator, and on the CPU the parameters are
    already in the memory that they would be offloaded to.
    """
    fsdp_utils: Any = importlib.import_module("verl.utils.fsdp_utils")
    from torch.distributed.fsdp import OffloadPolicy

    if _is_ours(fsdp_utils.CPUOffloadPolicy):
        return

    @_ours
    def no_offload(pin_memory: bool = True) -> OffloadPolicy:
        return OffloadPolicy()

    fsdp_utils.CPUOffloadPolicy = no_offload


def load_critic_without_flash_attention() -> None:
    """Load a critic with the attention that its configuration names, or PyTorch's.

    verl 0.9.1 hard-codes ``attn_implementation="flash_attention_2"`` in
    ``load_valuehead_model``, whatever ``critic.model.override_config`` says.
    """
    import verl.utils.model as model

    if _is_ours(model.load_valuehead_model):
        return

    @_ours
    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation or "sdpa",
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load_valuehead_model


def compute_log_probabilities_at_once() -> None:
    """Compute the log-probabilities of a batch in one operation, those of a large vocabulary by chunks.

    Without flash attention verl 0.9.1 falls back to ``logprobs_from_logits_v2``, which loops over the first
    axis "to reduce peak memory"; its FSDP engine passes it one row per token, so a step of a small policy spends
    most of its time on thousands of tiny autograd nodes. verl's own vectorised fused kernel does not help: with
    FSDP2 it refuses models whose embeddings are not tied.
    """
    import verl.utils.torch_functional as torch_functional

    if _is_ours(torch_functional.logprobs_from_logits_v2):
        return

    from turntree.agents.verl.log_probabilities import ChosenLogProbabilities

    @_ours
    def logprobs_from_logits_v2(logits: Any, labels: Any) -> Any:
        return ChosenLogProbabilities.apply(logits, labels)

    torch_functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def _ours(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__turntree_patch__ = True  # type: ignore[attr-defined]
    return function


def _is_ours(function: Any) -> bool:
    return getattr(function, "__turntree_patch__", False)
