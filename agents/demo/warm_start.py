"""Supervised training on noisy demonstrations, from which the demo's reinforcement learning starts.

The same settings give the same policy on the same machine, so a finished one
is kept in the cache folder and found again by a hash of its settings and of
the sources that created it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from turntree.agents.demo.demonstrations import Mixture, demonstrations
from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.episodes.token_view import TokenView
from turntree.envs.data.folders import cache_folder

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM

logger = logging.getLogger(__name__)

_SOURCES = ("tokenizer.py", "policy.py", "demonstrations.py", "muon.py", "warm_start.py")
_PARTS = 8
"""Parts of a batch, each of dialogues of similar length: less padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Settings of a warm start."""

    shape: PolicyShape = field(default_factory=PolicyShape)
    """Size of the policy."""
    mixture: Mixture = field(default_factory=Mixture)
    """Mixture of the demonstrations."""
    demonstrations: int = 2400
    """Number of demonstrations; they are seen in several epochs."""
    steps: int = 160
    """Optimiser steps."""
    batch: int = 48
    """Demonstrations per step."""
    learning_rate: float = 1e-2
    """Peak of the learning rate, after the warm-up."""
    warm_up: int = 30
    """Steps over which the learning rate rises; it falls as a cosine afterwards."""
    weight_decay: float = 0.01
    """Decoupled weight decay of the matrices."""
    seed: int = 0
    """Seed of weights, demonstrations and batches."""

    def __post_init__(self) -> None:
        for name in ("demonstrations", "steps", "batch", "warm_up"):
            if getattr(self, name) < 1:
                raise ValueError(f"WarmStart.{name} must be at least 1, got {getattr(self, name)}")


def warm_started_policy(
    settings: WarmStart | None = None, *, seed: int = 0, on_step: Callable[[int, float], None] | None = None
) -> Path:
    """The folder of a warm-started policy, trained now or found in the cache.

    Args:
        settings: Settings of the policy; ``None`` is the demo's policy with ``seed``.
        seed: Used if ``settings`` is ``None``.
        on_step: As in ``train``; not called if the policy is in the cache.
    """
    settings = settings or WarmStart(seed=seed)
    folder = cache_folder() / f"demo-policy-{_key(settings)}"
    if (folder / "config.json").is_file():
        logger.info("found the warm-started policy in %s", folder)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        model = train(settings, on_step=on_step or _log_every(50))
        save_policy(model, partial)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def train(settings: WarmStart, *, on_step: Callable[[int, float], None] | None = None) -> LlamaForCausalLM:
    """Train a policy from random weights.

    Args:
        settings: Settings of the training.
        on_step: Called after every step with its number, from 1, and its loss in nats per token.
    """
    import torch

    from turntree.agents.demo.muon import Muon

    tokenizer = build_tokenizer()
    played = demonstrations(tokenizer, count=settings.demonstrations, seed=settings.seed, mixture=settings.mixture)
    views = [TokenView.of(demonstration.episode) for demonstration in played]
    model = build_policy(settings.shape, seed=settings.seed)
    model.train()
    matrices, others = _parameters(model)
    optimizers = [
        Muon(matrices, lr=settings.learning_rate, weight_decay=settings.weight_decay),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    batches = _batches(views, settings)
    for step in range(settings.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, settings)
        loss = _backward(model, next(batches))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if on_step is not None:
            on_step(step + 1, loss)
    model.eval()
    return model


def _parameters(model: LlamaForCausalLM) -> tuple[list[Tensor], list[Tensor]]:
    """The layers' matrices, whose updates Muon orthogonalises, and everything else."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        (matrices if ".layers." in name and parameter.ndim == 2 else others).append(parameter)
    return matrices, others


def _schedule(step: int, settings: WarmStart) -> float:
    return min(1.0, (step + 1) / settings.warm_up) * max(0.05, 0.5 * (1 + math.cos(math.pi * step / settings.steps)))


def _batches(views: Sequence[TokenView], settings: WarmStart) -> Iterator[list[TokenView]]:
    rng = random.Random(settings.seed)
    waiting: list[TokenView] = []
    while True:
        while len(waiting) < settings.batch:
            waiting += rng.sample(views, len(views))
        yield waiting[: settings.batch]
        del waiting[: settings.batch]


def _backward(model: LlamaForCausalLM, batch: list[TokenView]) -> float:
    """Add the gradient of the mean loss over the policy's tokens in ``batch``; returns that loss."""
    from torch.nn.functional import cross_entropy

    batch = sorted(batch, key=lambda view: len(view.prompt_ids) + len(view.response_ids))
    total = sum(sum(view.mask) for view in batch)
    part = math.ceil(len(batch) / _PARTS)
    loss = 0.0
    for start in range(0, len(batch), part):
        inputs, targets = training_tensors(batch[start : start + part])
        logits = model(input_ids=inputs, use_cache=False).logits
        part_loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
        (part_loss / total).backward()
        loss += part_loss.item() / total
    return loss


def training_tensors(views: Sequence[TokenView]) -> tuple[Tensor, Tensor]:
    """Inputs and, where the policy sampled, the next tokens (-1 elsewhere), both (rows, longest - 1)."""
    import torch

    longest = max(len(view.prompt_ids) + len(view.response_ids) for view in views)
    inputs = torch.zeros(len(views), longest, dtype=torch.long)
    targets = torch.full_like(inputs, -1)
    for row, view in enumerate(views):
        tokens = torch.tensor(view.prompt_ids + view.response_ids)
        spoken = torch.tensor((0,) * len(view.prompt_ids) + view.mask, dtype=torch.bool)
        inputs[row, : len(tokens)] = tokens
        targets[row, : len(tokens)] = tokens.where(spoken, -1)
    return inputs[:, :-1], targets[:, 1:]


def _key(settings: WarmStart) -> str:
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


def _log_every(distance: int) -> Callable[[int, float], None]:
    def log(step: int, loss: float) -> None:
        if step % distance == 0:
            logger.info("warm start, step %d: %.3f nats a token", step, loss)

    return log
