"""Supervised training on noisy demonstrations, the start of the demo's reinforcement learning.

The tiny policy starts from random weights, a given model from its own weights. The same settings give the same policy
on the same machine. So policies are cached under a hash of the settings, the source files that determine the result,
and the files of a given model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.demo.demonstrations import ENV_KWARGS, demonstrations
from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.sft.fit import FitSettings, adamw, fit
from turntree.envs.data.rows import cache_folder

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_SOURCES = ("tokenizer.py", "policy.py", "demonstrations.py", "muon.py", "warm_start.py", "../sft/fit.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart(FitSettings):
    model: str = ""
    """Folder or Hugging Face id of a model to copy and train; empty creates a policy of ``shape``."""
    env_kwargs: Mapping[str, Any] = field(default_factory=lambda: ENV_KWARGS)
    """Settings of the demonstrations' environment."""
    shape: PolicyShape = field(default_factory=PolicyShape)
    """Size of the policy."""
    demonstrations: int = 2400
    """Number of demonstrations; each is trained on in several epochs."""
    steps: int = 160
    """Optimiser steps."""
    batch: int = 48
    """Demonstrations per step."""
    learning_rate: float = 1e-2
    """Peak learning rate, after the warm-up."""
    warm_up: int = 30
    """Steps over which the learning rate rises, before a cosine decay."""
    weight_decay: float = 0.01
    """Decoupled weight decay of the matrices."""
    seed: int = 0
    """Seed of weights, demonstrations and batches."""

    def __post_init__(self) -> None:
        # super() does not work in a dataclass with slots.
        FitSettings.__post_init__(self)
        if self.demonstrations < 1:
            raise ValueError(f"WarmStart.demonstrations must be at least 1, got {self.demonstrations}")

    @classmethod
    def of_model(cls, model: str, env_kwargs: Mapping[str, Any], *, seed: int = 0) -> WarmStart:
        # A pretrained chat model needs few demonstrations and small steps.
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
    """Return the folder of a warm-started policy, trained now or found in the cache.

    Args:
        settings: ``None`` takes the demo's policy with ``seed``.
        on_step: As in ``train``; not called if the policy is cached.
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
            # Another process has trained this policy in the meantime, so use that one.
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def train(
    settings: WarmStart, *, on_step: Callable[[int, float], None] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Train a policy and return it with its tokenizer.

    Args:
        on_step: Called after every step with its number, from 1, and its loss in nats per token.
    """
    model, tokenizer = _initial_model(settings)
    played = demonstrations(
        tokenizer, count=settings.demonstrations, seed=settings.seed, env_kwargs=settings.env_kwargs
    )
    views = [TokenView.of(demonstration.episode) for demonstration in played]
    fit(model, views, settings, optimizers(model, settings), on_step=on_step)
    return model, tokenizer


def _initial_model(settings: WarmStart) -> tuple[Any, Any]:
    if not settings.model:
        return build_policy(settings.shape, seed=settings.seed), build_tokenizer()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(settings.model)


def optimizers(model: PreTrainedModel, settings: WarmStart) -> list[Optimizer]:
    # Muon needs fewer steps to train random matrices; a pretrained model is fine-tuned with AdamW.
    from turntree.agents.demo.muon import Muon

    rate = settings.learning_rate
    if settings.model:
        return [adamw(model.parameters(), rate)]
    matrices, rest = _parameters(model)
    return [Muon(matrices, lr=rate, weight_decay=settings.weight_decay), adamw(rest, rate)]


def _parameters(model: PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, parameter in model.named_parameters():
        (matrices if ".layers." in name and parameter.ndim == 2 else rest).append(parameter)
    return matrices, rest


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
            logger.info("warm start, step %d: %.3f nats per token", step, loss)

    return log
