from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log, nan, sqrt
from statistics import fmean, stdev
from typing import Any, NamedTuple

from turntree.agents.evaluation.bench import Epoch, Spent, whole
from turntree.agents.evaluation.evaluate import Estimate
from turntree.agents.evaluation.paired import t_quantile
from turntree.agents.files import json_value

_MIN_IMPROVEMENT = 1.005  #: smallest ratio of tokens per forward pass that counts as an improvement


class BenchResult(NamedTuple):
    title: str
    settings: Mapping[str, Any]  #: all settings, including defaults
    machine: Sequence[tuple[str, str]]
    command: str  #: command that repeats the measurement
    epochs: Sequence[Epoch]


HEAD = (
    "epoch",
    "tokens/s without",
    "with drafts",
    "ratio",
    "tokens per forward pass without",
    "with drafts",
    "drafter ms per step",
)


def rows(epochs: Sequence[Epoch]) -> list[tuple[str, ...]]:
    named = [*((str(number), epoch) for number, epoch in enumerate(epochs, start=1)), ("all", whole(epochs))]
    return [(name, *_cells(epoch)) for name, epoch in named]


def ratio_interval(epochs: Sequence[Epoch]) -> Estimate:
    """Return the geometric mean of the epochs' ratios with a 95 % interval (Student's t of the logarithms).

    ``tasks`` of the estimate is the number of epochs; the interval is NaN with a single epoch.
    """
    values = [log(epoch.ratio) for epoch in epochs]
    count, mean = len(values), fmean(values)
    half = t_quantile(count - 1) * stdev(values) / sqrt(count) if count > 1 else nan
    return Estimate(exp(mean), exp(mean - half), exp(mean + half), count)


def ratio_in_words(epochs: Sequence[Epoch]) -> list[str]:
    ratio, total = ratio_interval(epochs), whole(epochs)
    if ratio.tasks > 1:
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}, 95 % interval over {ratio.tasks} epochs"
        inconclusive = "; it contains 1, so no difference is shown" if ratio.low <= 1 <= ratio.high else ""
        lines = [f"ratio per epoch, geometric mean: {ratio.value:.2f} ({interval}{inconclusive})"]
    else:
        lines = ["no interval for the ratio: use --epochs 2 or more"]
    plain, drafted = total.plain.tokens_per_forward_pass, total.drafted.tokens_per_forward_pass
    if drafted < plain * _MIN_IMPROVEMENT:
        lines.append(
            f"drafts did not help: {drafted:.2f} tokens per forward pass with drafts and {plain:.2f} without; "
            "the ratio shows only drafting costs and noise of the machine"
        )
    return lines


def same_turns(epochs: Sequence[Epoch]) -> str:
    total = whole(epochs)
    words = f"{total.equal} of {total.turns} turns equal token for token"
    return words if total.equal == total.turns else f"{words}; the other turns differ at near ties: try --dtype float32"


def as_json(result: BenchResult) -> str:
    return json.dumps(
        {
            "title": result.title,
            "command": result.command,
            "machine": dict(result.machine),
            "settings": dict(result.settings),
            "epochs": [_figures(epoch) for epoch in result.epochs],
            "all": _figures(whole(result.epochs)),
            "ratio": json_value(ratio_interval(result.epochs)._asdict()),
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
        "without": _spent_figures(epoch.plain),
        "with": _spent_figures(epoch.drafted),
        "turns": epoch.turns,
        "equal_turns": epoch.equal,
    }


def _spent_figures(spent: Spent) -> dict[str, Any]:
    return {
        "tokens": spent.tokens,
        "seconds": spent.seconds,
        "tokens_per_second": spent.tokens_per_second,
        "verify_steps": spent.verify_steps,
        "tokens_per_forward_pass": spent.tokens_per_forward_pass if spent.verify_steps else None,
        "drafter_ms_per_step": spent.drafter_ms,
    }
