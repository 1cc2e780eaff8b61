"""The results of ``turntree bench``, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turntree.agents.evaluation.bench import Epoch, Spent, whole


class BenchResult(NamedTuple):
    """A measurement and its settings."""

    title: str
    """Environment, model and engine."""
    settings: Mapping[str, Any]
    """All settings, defaults included."""
    machine: Sequence[tuple[str, str]]
    """The machine that it ran on."""
    command: str
    """The command that repeats it."""
    epochs: Sequence[Epoch]
    """Epochs in order."""


HEAD = (
    "epoch",
    "tokens/s without",
    "with drafts",
    "ratio",
    "tokens per forward pass without",
    "with drafts",
    "drafter ms per step",
)
"""Columns of the table."""


def rows(epochs: Sequence[Epoch]) -> list[tuple[str, ...]]:
    """Rows of the table: each epoch, then all of them."""
    named = [*((str(number), epoch) for number, epoch in enumerate(epochs, start=1)), ("all", whole(epochs))]
    return [(name, *_cells(epoch)) for name, epoch in named]


def same_turns(epochs: Sequence[Epoch]) -> str:
    """The number of equal turns, in words."""
    every = whole(epochs)
    words = f"{every.equal} of {every.turns} turns equal token for token"
    return words if every.equal == every.turns else f"{words}; the others fell on a near tie: try --dtype float32"


def as_json(result: BenchResult) -> str:
    """Everything as one JSON object; times are seconds of wall time."""
    return json.dumps(
        {
            "title": result.title,
            "command": result.command,
            "machine": dict(result.machine),
            "settings": dict(result.settings),
            "epochs": [_figures(epoch) for epoch in result.epochs],
            "all": _figures(whole(result.epochs)),
        },
        indent=1,
        ensure_ascii=False,
    )


def _cells(epoch: Epoch) -> tuple[str, ...]:
    plain, drafted = epoch.plain, epoch.drafted
    return (
        f"{plain.tokens_per_second:.1f}",
        f"{drafted.tokens_per_second:.1f}",
        f"{epoch.ratio:.2f}",
        f"{plain.tokens_per_forward_pass:.2f}",
        f"{drafted.tokens_per_forward_pass:.2f}",
        "-" if drafted.drafter_ms is None else f"{drafted.drafter_ms:.2f}",
    )


def _figures(epoch: Epoch) -> dict[str, Any]:
    return {
        "ratio": epoch.ratio,
        "without": _spent(epoch.plain),
        "with": _spent(epoch.drafted),
        "turns": epoch.turns,
        "equal_turns": epoch.equal,
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {
        "tokens": spent.tokens,
        "seconds": spent.seconds,
        "tokens_per_second": spent.tokens_per_second,
        "verify_steps": spent.verify_steps,
        "tokens_per_forward_pass": spent.tokens_per_forward_pass if spent.verify_steps else None,
        "drafter_ms_per_step": spent.drafter_ms,
    }
