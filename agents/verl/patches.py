"""All changes that turntree makes to verl's own code; each works around one upstream bug.

The plugin calls ``apply_cpu_patches``, only on the CPU platform. These patches refuse verl versions that they were not
tested with. Every trainer's sampler calls ``apply_step_patches``. These patches work with any version and act only
where verl would raise. ``tests/agents/verl/test_patches.py`` fails as soon as verl has fixed one of the bugs. No other
module of turntree assigns to a verl module.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from turntree.envs.errors import pip_install

VERSIONS = ("0.9.1",)
"""Versions of verl that the CPU patches were tested with."""


def apply_cpu_patches() -> None:
    """Apply every patch that training on the CPU needs.

    Raises:
        RuntimeError: If the installed verl is not one of ``VERSIONS``.
    """
    installed = importlib.metadata.version("verl")
    if installed not in VERSIONS:
        raise RuntimeError(
            f"training on the CPU was tested with verl {', '.join(VERSIONS)}, but verl {installed} is "
            f"installed: {pip_install(f'verl=={VERSIONS[-1]}')}"
        )
    name_one_process_group_backend()
    keep_reference_policy_unpinned()
    load_critic_without_flash_attention()
    compute_log_probabilities_at_once()


def apply_step_patches() -> None:
    """Apply the patches that let a trainer continue after a step in which all, or all but one, episodes failed."""
    take_no_variance_of_single_tokens()
    correct_no_step_without_tokens()


def name_one_process_group_backend() -> None:
    """Default the process group's backend to ``cpu:gloo``.

    On the CPU, verl 0.9.1 passes ``cpu:gloo,cpu:gloo``. ``torch.distributed`` refuses a backend string that names a
    device twice.
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

    verl 0.9.1 builds ``CPUOffloadPolicy(pin_memory=True)`` for every forward-only model, but pinning memory needs an
    accelerator. On the CPU the parameters are already in host memory.
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
    """Load a critic with the attention implementation of its configuration, or else PyTorch's SDPA.

    verl 0.9.1 hard-codes ``attn_implementation="flash_attention_2"`` in
    ``load_valuehead_model`` and ignores ``critic.model.override_config``.
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
    """Compute the log-probabilities of a batch in one operation, or in chunks if the vocabulary is large.

    Without flash attention, verl 0.9.1 falls back to ``logprobs_from_logits_v2``, which loops over the first axis "to
    reduce peak memory". verl's FSDP engine passes one row per token, so a small policy spends most of a step on
    thousands of tiny autograd nodes. verl's fused kernel does not help: with FSDP2 it refuses untied embeddings.
    """
    import verl.utils.torch_functional as torch_functional

    if _is_ours(torch_functional.logprobs_from_logits_v2):
        return

    from turntree.agents.verl.log_probabilities import ChosenLogProbabilities

    @_ours
    def logprobs_from_logits_v2(logits: Any, labels: Any) -> Any:
        return ChosenLogProbabilities.apply(logits, labels)

    torch_functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def take_no_variance_of_single_tokens() -> None:
    """Return 0 as the variance of a batch with at most one sampled token.

    verl 0.9.1 whitens GAE advantages with ``masked_var``, which raises here. A step in which every episode failed would
    end the training.
    """
    import verl.utils.torch_functional as torch_functional

    original = torch_functional.masked_var
    if _is_ours(original):
        return

    @_ours
    @functools.wraps(original)
    def masked_var(values: Any, mask: Any, unbiased: bool = True) -> Any:
        return original(values, mask, unbiased and bool(mask.sum() > 1))

    torch_functional.masked_var = masked_var


def correct_no_step_without_tokens() -> None:
    """Skip verl's rollout correction for a batch without sampled tokens.

    verl 0.9.1 raises "response_mask must contain at least one valid token", even if no correction is configured and
    verl computes only its metrics.
    """
    trainer: Any = importlib.import_module("verl.trainer.ppo.v1.trainer_base")

    original = trainer.compute_rollout_correction_and_add_to_batch
    if _is_ours(original):
        return

    @_ours
    @functools.wraps(original)
    def correct(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.batch["response_mask"].any():
            return batch, {}
        return original(batch, *args, **kwargs)

    trainer.compute_rollout_correction_and_add_to_batch = correct


def _ours(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__turntree_patch__ = True  # type: ignore[attr-defined]
    return function


def _is_ours(function: Any) -> bool:
    return getattr(function, "__turntree_patch__", False)
