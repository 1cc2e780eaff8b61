"""Every change that turntree makes to verl's own code, one function per upstream defect.

The plugin applies ``apply_cpu_patches`` on the CPU platform only, and refuses versions of verl that the patches were
not checked against. Every trainer's sampler applies ``apply_step_patches``, which act only where verl would raise.
``tests/agents/verl/test_patches.py`` fails as soon as upstream fixes a defect. Nothing else in turntree assigns to a
verl module.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from turntree.envs.errors import pip_install

VERSIONS = ("0.9.1",)  #: versions of verl that the patches were checked against


def apply_cpu_patches() -> None:
    """Apply the patches that training on the CPU needs; refuse an unchecked version of verl."""
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


def apply_step_patches() -> None:
    """Apply the patches that let a trainer continue after a step with at most one usable episode."""
    take_no_variance_of_single_tokens()
    correct_no_step_without_tokens()


def name_one_process_group_backend() -> None:
    """Default the process group's backend to ``cpu:gloo``.

    verl 0.9.1 builds ``cpu:gloo,{device}:{backend}``, which names the CPU twice; ``torch.distributed`` refuses that.
    """
    import verl.utils.distributed as distributed

    def initialize(original: Any, timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "cpu:gloo")

    _replace(distributed, "initialize_global_process_group_ray", initialize)


def keep_reference_policy_unpinned() -> None:
    """Disable FSDP2's CPU offloading, which verl forces on the reference policy.

    verl 0.9.1 builds ``CPUOffloadPolicy(pin_memory=True)`` for every forward-only model. Pinning needs an accelerator,
    and on the CPU the parameters are already in host memory.
    """
    from torch.distributed.fsdp import OffloadPolicy

    def no_offload(original: Any, pin_memory: bool = True) -> OffloadPolicy:
        return OffloadPolicy()

    _replace(importlib.import_module("verl.utils.fsdp_utils"), "CPUOffloadPolicy", no_offload)


def load_critic_without_flash_attention() -> None:
    """Load a critic with the attention that its configuration names, or PyTorch's.

    verl 0.9.1 hard-codes ``attn_implementation="flash_attention_2"`` in ``load_valuehead_model``, whatever
    ``critic.model.override_config`` asks for.
    """
    import verl.utils.model as model

    def load(original: Any, local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation or "sdpa",
            trust_remote_code=trust_remote_code,
        )

    _replace(model, "load_valuehead_model", load)


def compute_log_probabilities_at_once() -> None:
    """Compute the log-probabilities of a batch in one operation, in chunks for a large vocabulary.

    Without flash attention verl 0.9.1 falls back to ``logprobs_from_logits_v2``, which loops over the first axis "to
    reduce peak memory". Its FSDP engine passes one row per token, so a small policy spends most of a step on thousands
    of tiny autograd nodes. verl's fused kernel does not help: with FSDP2 it refuses models with untied embeddings.
    """
    import verl.utils.torch_functional as torch_functional

    from turntree.agents.verl.log_probabilities import ChosenLogProbabilities

    def log_probabilities(original: Any, logits: Any, labels: Any) -> Any:
        return ChosenLogProbabilities.apply(logits, labels)

    _replace(torch_functional, "logprobs_from_logits_v2", log_probabilities)


def take_no_variance_of_single_tokens() -> None:
    """Return 0 as the variance of fewer than two sampled tokens.

    verl 0.9.1 raises in ``masked_var``, which whitens generalised advantages: a step that loses every episode would end
    the training.
    """
    import verl.utils.torch_functional as torch_functional

    def masked_var(original: Any, values: Any, mask: Any, unbiased: bool = True) -> Any:
        return original(values, mask, unbiased and bool(mask.sum() > 1))

    _replace(torch_functional, "masked_var", masked_var)


def correct_no_step_without_tokens() -> None:
    """Skip the correction for the engine's log-probabilities if a batch has no sampled token.

    verl 0.9.1 raises there ("response_mask must contain at least one valid token"), even if no correction is configured
    and only its metrics are computed.
    """

    def correct(original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.batch["response_mask"].any():
            return batch, {}
        return original(batch, *args, **kwargs)

    trainer = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
    _replace(trainer, "compute_rollout_correction_and_add_to_batch", correct)


def _replace(module: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(module, name)
    if getattr(original, "__turntree_patch__", False):  # verl may load the plugin twice in a process
        return

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    patched.__turntree_patch__ = True  # type: ignore[attr-defined]
    setattr(module, name, patched)
