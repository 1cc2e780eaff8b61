"""Fine-tunes a model on demonstrations and writes a model folder for ``train``, ``eval`` and ``serve``.

This is a plain loop on one device, not verl's SFT trainer. verl 0.9.1 needs torchrun and Parquet files. It also renders
every message with a separate call of the chat template, so prompts would differ from rollouts (tool answers, dropped
thoughts). In this module, rows are the tokens of rollouts, and only the policy's tokens are trained on. Weights are
float32, because bfloat16 is many times slower on CPUs without bfloat16 instructions. On a GPU, matrices are multiplied
in bfloat16. With AdamW, a model needs about 16 bytes per parameter.

Not supported: models that need several devices; use verl's or TRL's trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from turntree.agents.errors import MissingExtra, UsageError
from turntree.agents.sft.demonstrations import Demonstrations
from turntree.agents.sft.fit import FitSettings, adamw, fit

FIGURES = "sft.json"  #: file in the model's folder with counts of the training data, and losses


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    epochs: float = 1.0
    """Passes over the demonstrations."""
    steps: int | None = None
    """Number of optimiser steps; overrides ``epochs``."""
    lr: float = 2e-4
    """Peak of the learning rate."""
    batch_size: int = 8
    """Demonstrations per step."""
    seed: int = 0
    """Seed of the order of demonstrations."""
    device: str | None = None
    """Torch device; ``None`` takes a GPU if there is one."""

    def fit(self, rows: int) -> FitSettings:
        batch = min(self.batch_size, rows)
        steps = self.steps or max(1, math.ceil(self.epochs * rows / batch))
        warm_up = max(1, steps // 10)
        return FitSettings(steps=steps, batch=batch, learning_rate=self.lr, warm_up=warm_up, seed=self.seed)


def check_out(out: Path) -> None:
    """Raise ``UsageError`` unless ``out`` is new or an empty folder; call this before playing anything."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} already exists; choose a new folder with --out, or remove it")


def fine_tune(
    model: str,
    tokenizer: Any,
    demonstrations: Demonstrations,
    out: Path,
    settings: SftSettings | None = None,
    *,
    source: str = "",
    on_step: Callable[[int, int, float], None] | None = None,
) -> dict[str, Any]:
    """Train a copy of a model and write it with its tokenizer to ``out``, completely or not at all.

    Returns:
        The figures, which are also written to ``sft.json`` in the folder.

    Raises:
        UsageError: If ``out`` exists, or the loss is not finite.
        MissingExtra: If torch or transformers is not installed.
    """
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtra("fine-tuning", "local") from error

    check_out(out)
    settings = settings or SftSettings()
    views, loop = demonstrations.views, settings.fit(len(demonstrations.views))
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    saved_dtype = getattr(AutoConfig.from_pretrained(model), "dtype", None) or torch.float32
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    policy = policy.to(device)
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise UsageError(f"the loss of step {step} is {loss}: lower --lr, which is {settings.lr:g}")
        losses.append(loss)
        if on_step is not None:
            on_step(step, loop.steps, loss)

    began = perf_counter()
    with torch.autocast(device, torch.bfloat16) if device.startswith("cuda") else nullcontext():
        fit(policy, views, loop, [adamw(policy.parameters(), loop.learning_rate)], on_step=note)
    figures = {
        "model": model,
        "source": source,
        "demonstrations": demonstrations.used,
        "dropped": demonstrations.dropped,
        "tokens": sum(len(view.prompt_ids) + len(view.response_ids) for view in views),
        "trained_tokens": demonstrations.tokens,
        **asdict(loop),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "seconds": round(perf_counter() - began, 1),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    # Use the same file system, so that one rename creates the folder.
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as unfinished:
        folder = Path(unfinished, "model")
        policy.to("cpu", saved_dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / FIGURES).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        folder.replace(out)
    return figures
