"""Every change that turntree makes to verl's own code, one function per upstream defect.

``plugin`` calls ``apply_cpu_patches`` on the CPU platform only. That function refuses versions of verl that the patches
were not checked with. Each sampler calls ``apply_step_patches``, whose patches act only where verl would raise.
``tests/agents/verl/test_patches.py`` fails as soon as upstream fixes a defect. Nothing else in turntree assigns to a
verl module.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from turntree.envs.errors import pip_install

VERSIONS = ("0.9.1",)  #: versions of verl that the patches were checked with
_LOGITS = 1 << 23  #: logits per chunk; 32 MB in float32


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

    def log_probabilities(original: Any, logits: Any, labels: Any) -> Any:
        return ChosenLogProbabilities.apply(logits, labels)

    _replace(torch_functional, "logprobs_from_logits_v2", log_probabilities)


class ChosenLogProbabilities(torch.autograd.Function):
    """``apply(logits, labels)`` returns each label's float32 log-probability, in the labels' shape.

    The gradient is the only tensor as large as the logits. Plain autograd would allocate five such tensors, 400 MB each
    in float32 for a vocabulary of 49,152 and 2,048 tokens.

    The gradient with respect to the logits is the label's one-hot vector minus the softmax. Result and gradient are
    computed in chunks of rows; a small policy needs one chunk.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Take logits of shape (..., vocabulary) and labels of shape (...)."""
        rows, chosen = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, 1)
        totals = torch.cat([rows[part].float().logsumexp(-1) for part in _chunks(rows)])
        ctx.save_for_backward(rows, chosen, totals)
        ctx.shape = logits.shape
        return (rows.gather(-1, chosen)[:, 0].float() - totals).view(labels.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, chosen, totals = ctx.saved_tensors
        weights = gradients[0].reshape(-1, 1).float()
        gradient = torch.empty_like(rows)
        for part in _chunks(rows):
            softmax = (rows[part].float() - totals[part, None]).exp_().mul_(-weights[part])
            gradient[part] = softmax.scatter_add_(-1, chosen[part], weights[part])
        return gradient.view(ctx.shape), None


def _chunks(rows: Tensor) -> Iterator[slice]:
    size = max(1, _LOGITS // rows.shape[-1])
    yield from (slice(at, at + size) for at in range(0, max(1, len(rows)), size))


def take_no_variance_of_single_tokens() -> None:
    """Return 0 as the variance of fewer than two sampled tokens.

    verl 0.9.1 whitens generalised advantages with ``masked_var``, which raises for fewer than two tokens. A step whose
    episodes all fail would therefore end the training.
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
