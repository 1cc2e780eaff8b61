"""The supervised training loop: cross-entropy on the policy's tokens of recorded dialogues.

``TokenView.mask`` selects the policy's tokens: prompts, observations and template tokens do not add to the loss. An
environment's dialogues share a system prompt and tool schemas, which are often most of their tokens. The model
processes this common prefix once per step, with exact gradients (``_Prefix``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turntree.agents.episodes.token_view import TokenView

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

_PARTS = 8  #: parts of a batch, each with dialogues of similar length to save padding
_MIN_PART = 4  #: least dialogues per part, because each part adds to the gradients of all weights
_MIN_PREFIX = 32  #: tokens of the shortest common prefix that is computed separately


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    steps: int
    """Optimiser steps."""
    batch: int = 8
    """Dialogues per step."""
    learning_rate: float = 1e-4
    """Peak of the learning rate, after the warm-up."""
    warm_up: int = 4
    """Steps over which the learning rate rises; afterwards it follows a cosine decay."""
    seed: int = 0
    """Seed of the order of dialogues."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "warm_up"):
            if getattr(self, name) < 1:
                raise ValueError(f"{type(self).__name__}.{name} must be at least 1, got {getattr(self, name)}")


def fit(
    model: PreTrainedModel,
    views: Sequence[TokenView],
    settings: FitSettings,
    optimizers: Sequence[Optimizer],
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train a model on the policy's tokens in dialogues, with gradients clipped to norm 1.

    ``on_step`` is called after every step with its number, from 1, and its loss in nats per token.
    """
    import torch

    model.train()
    batches = _batches(views, settings)
    for step in range(settings.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, settings)
        loss = backward(model, next(batches))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if on_step is not None:
            on_step(step + 1, loss)
    model.eval()


def adamw(parameters: Any, learning_rate: float) -> Optimizer:
    from torch.optim import AdamW

    # No weight decay: the model is pretrained.
    return AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)


def _schedule(step: int, settings: FitSettings) -> float:
    return min(1.0, (step + 1) / settings.warm_up) * max(0.05, 0.5 * (1 + math.cos(math.pi * step / settings.steps)))


def _batches(views: Sequence[TokenView], settings: FitSettings) -> Iterator[list[TokenView]]:
    rng = random.Random(settings.seed)
    waiting: list[TokenView] = []
    while True:
        while len(waiting) < settings.batch:
            waiting += rng.sample(views, len(views))
        yield waiting[: settings.batch]
        del waiting[: settings.batch]


def backward(model: PreTrainedModel, batch: Sequence[TokenView]) -> float:
    """Add the gradient of the mean loss over the policy's tokens in ``batch``; return the mean loss."""
    from torch.nn.functional import cross_entropy

    batch = sorted(batch, key=lambda view: len(view.prompt_ids) + len(view.response_ids))
    total = sum(sum(view.mask) for view in batch)
    size = max(_MIN_PART, math.ceil(len(batch) / _PARTS))
    prefix = _Prefix(model, _common_prompt(batch)) if len(batch) > 1 else _Prefix(model, ())
    loss = 0.0
    for start in range(0, len(batch), size):
        rows = training_tensors(batch[start : start + size])
        inputs, targets = (columns[:, prefix.length :].to(model.device) for columns in rows)
        # Logits of a large vocabulary need most of the memory, so skip positions at which no row has a target.
        learnt = (targets >= 0).any(dim=0).nonzero().flatten()
        logits = model(input_ids=inputs, logits_to_keep=learnt, **prefix.before(len(inputs))).logits
        targets = targets[:, learnt]
        part_loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1, reduction="sum")
        (part_loss / total).backward()
        loss += part_loss.item() / total
    prefix.backward()
    return loss


def _common_prompt(batch: Sequence[TokenView]) -> tuple[int, ...]:
    # Leave the last token of every prompt out of the prefix, because its logits predict the response's first token.
    shortest = min(len(view.prompt_ids) for view in batch) - 1
    first = batch[0].prompt_ids
    length = next((i for i in range(shortest) if any(view.prompt_ids[i] != first[i] for view in batch)), shortest)
    return first[: max(0, length)]


class _Prefix:
    """The common prefix of a batch's prompts, computed once.

    The prefix's keys and values are leaves of the autograd graph of each part (sub-batch). They accumulate the
    gradients of all parts. One backward pass then propagates the sum to the weights. Not supported: models whose cache
    is not a plain list of keys and values (sliding windows, linear attention). Such models process the full rows.
    """

    def __init__(self, model: PreTrainedModel, tokens: tuple[int, ...]) -> None:
        self.length = 0
        self._computed: list[Tensor] = []
        self._leaves: list[Tensor] = []
        self._config: Any = model.config
        if len(tokens) < _MIN_PREFIX:
            return
        import torch
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        cache = DynamicCache(config=model.config)
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return
        inputs = torch.tensor([tokens], device=model.device)
        cache = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
        self._computed = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        self._leaves = [tensor.detach().requires_grad_() for tensor in self._computed]
        self.length = len(tokens)

    def before(self, rows: int) -> dict[str, Any]:
        if not self._leaves:
            return {"use_cache": False}
        from transformers import DynamicCache

        cache = DynamicCache(config=self._config)
        for layer in range(len(self._leaves) // 2):
            keys, values = (leaf.expand(rows, -1, -1, -1) for leaf in self._leaves[2 * layer : 2 * layer + 2])
            cache.update(keys, values, layer)
        return {"past_key_values": cache, "use_cache": True}

    def backward(self) -> None:
        import torch

        pairs = zip(self._computed, self._leaves, strict=True)
        collected = [(tensor, leaf.grad) for tensor, leaf in pairs if leaf.grad is not None]
        if collected:
            torch.autograd.backward([tensor for tensor, _ in collected], [gradient for _, gradient in collected])


def training_tensors(views: Sequence[TokenView]) -> tuple[Tensor, Tensor]:
    """Return input tokens and target tokens (-1 if not sampled), both of shape (rows, longest view - 1)."""
    import torch

    longest = max(len(view.prompt_ids) + len(view.response_ids) for view in views)
    inputs = torch.zeros(len(views), longest, dtype=torch.long)
    targets = torch.full_like(inputs, -1)
    for row, view in enumerate(views):
        tokens = torch.tensor(view.prompt_ids + view.response_ids)
        sampled = torch.tensor((0,) * len(view.prompt_ids) + view.mask, dtype=torch.bool)
        inputs[row, : len(tokens)] = tokens
        targets[row, : len(tokens)] = tokens.where(sampled, -1)
    return inputs[:, :-1], targets[:, 1:]
