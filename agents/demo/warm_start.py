"""Supervised training on noisy demonstrations, from which the demo's reinforcement learning starts.

The tiny policy starts from random weights, a given model from its own. The
same settings give the same policy on the same machine, so a finished one is
kept in the cache folder and found again by a hash of its settings, of the
sources that created it, and of a given model's files by their size and time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.demo.demonstrations import ENV_KWARGS, demonstrations
from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.episodes.token_view import TokenView
from turntree.envs.data.folders import cache_folder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_SOURCES = ("tokenizer.py", "policy.py", "demonstrations.py", "muon.py", "warm_start.py")
_PARTS = 8
"""Parts of a batch, each of dialogues of similar length: less padding."""
_LEAST = 4
"""Least number of dialogues in a part: each part adds to the gradients of all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Settings of a warm start."""

    model: str = ""
    """A model's folder or Hugging Face id, a copy of which is trained further; empty: a new one of ``shape``."""
    env_kwargs: Mapping[str, Any] = field(default_factory=lambda: ENV_KWARGS)
    """Settings of the environment of the demonstrations."""
    shape: PolicyShape = field(default_factory=PolicyShape)
    """Size of the policy."""
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

    @classmethod
    def of_model(cls, model: str, env_kwargs: Mapping[str, Any], *, seed: int = 0) -> WarmStart:
        """Settings for a chat model that knows language already: few demonstrations, small steps."""
        return cls(
            model=model,
            env_kwargs=env_kwargs,
            demonstrations=128,
            steps=16,
            batch=8,
            learning_rate=1e-4,
            warm_up=4,
            seed=seed,
        )


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
        model, tokenizer = train(settings, on_step=on_step or _log_every(50))
        save_policy(model, partial, tokenizer)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def train(
    settings: WarmStart, *, on_step: Callable[[int, float], None] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Train a policy; returns it with its tokenizer.

    Args:
        on_step: Called after every step with its number, from 1, and its loss in nats per token.
    """
    model, tokenizer = _untrained(settings)
    played = demonstrations(
        tokenizer, count=settings.demonstrations, seed=settings.seed, env_kwargs=settings.env_kwargs
    )
    fit(model, [TokenView.of(demonstration.episode) for demonstration in played], settings, on_step=on_step)
    return model, tokenizer


def fit(
    model: PreTrainedModel,
    views: Sequence[TokenView],
    settings: WarmStart,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train a model on the policy's tokens in dialogues.

    Args:
        settings: Of the training; its demonstrations are not played.
    """
    import torch

    model.train()
    optimizers = _optimizers(model, settings)
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


def _untrained(settings: WarmStart) -> tuple[Any, Any]:
    if not settings.model:
        return build_policy(settings.shape, seed=settings.seed), build_tokenizer()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(settings.model)


def _optimizers(model: PreTrainedModel, settings: WarmStart) -> list[Optimizer]:
    """Muon for a new model's matrices, which it teaches in fewer steps; Adam for all else, and for a given model."""
    from torch.optim import AdamW

    from turntree.agents.demo.muon import Muon

    rate = settings.learning_rate
    if settings.model:
        return [AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]
    matrices, others = _parameters(model)
    return [
        Muon(matrices, lr=rate, weight_decay=settings.weight_decay),
        AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _parameters(model: PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
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


def _backward(model: PreTrainedModel, batch: list[TokenView]) -> float:
    """Add the gradient of the mean loss over the policy's tokens in ``batch``; returns that loss."""
    from torch.nn.functional import cross_entropy

    batch = sorted(batch, key=lambda view: len(view.prompt_ids) + len(view.response_ids))
    total = sum(sum(view.mask) for view in batch)
    part = max(_LEAST, math.ceil(len(batch) / _PARTS))
    loss = 0.0
    for start in range(0, len(batch), part):
        inputs, targets = training_tensors(batch[start : start + part])
        heard = (targets >= 0).any(dim=0).nonzero().flatten()  # a large vocabulary's logits where they count alone
        logits, targets = model(input_ids=inputs, use_cache=False, logits_to_keep=heard).logits, targets[:, heard]
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
    if settings.model and Path(settings.model).is_dir():
        for path in sorted(Path(settings.model).iterdir()):
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _log_every(distance: int) -> Callable[[int, float], None]:
    def log(step: int, loss: float) -> None:
        if step % distance == 0:
            logger.info("warm start, step %d: %.3f nats a token", step, loss)

    return log
