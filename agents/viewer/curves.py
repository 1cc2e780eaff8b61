"""The curves of a training run, from its recorded figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from turntree.agents.viewer.chart import Series, line_chart, moving_average
from turntree.agents.viewer.source import Source

_WINDOW = 5
"""Steps of the moving average."""


class Curve(NamedTuple):
    """One chart."""

    title: str
    """Title."""
    svg: str
    """Markup."""


_Read = Callable[[Mapping[str, Any]], Any]

_OF_TRAINER: tuple[tuple[str, _Read], ...] = (
    ("mean reward", lambda row: row["data"]["critic/score/mean"]),
    ("sampled tokens of an episode", lambda row: row["data"]["response_length/mean"]),
    ("entropy of the policy, nats a token", lambda row: row["data"]["actor/entropy"]),
    ("seconds of a step", lambda row: row["data"]["timing_s/step"]),
    ("gradient norm", lambda row: row["data"]["actor/grad_norm"]),
)
_OF_ENGINE: tuple[tuple[str, _Read], ...] = (
    ("tokens per verify step", lambda row: row["tokens_per_step"]),
    ("accepted share of drafted tokens", lambda row: row["accepted"] / row["drafted"]),
    ("engine seconds of a step", lambda row: row["seconds"]),
)


def curves(source: Source) -> list[Curve]:
    """Charts of the figures that ``source`` has, over the training steps."""
    rows = [(title, read, source.metrics) for title, read in _OF_TRAINER]
    rows += [(title, read, source.engine) for title, read in _OF_ENGINE]
    return [curve for title, read, figures in rows if (curve := _curve(title, read, figures)) is not None]


def _curve(title: str, read: _Read, rows: tuple[dict[str, Any], ...]) -> Curve | None:
    points = []
    for row in rows:
        try:
            value = float(read(row))
        except (KeyError, TypeError, ZeroDivisionError):
            continue
        if math.isfinite(value):
            points.append((float(row["step"]), value))
    if len(points) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    smooth = tuple(zip(xs, moving_average(ys, _WINDOW), strict=True))
    return Curve(
        title,
        line_chart(
            [
                Series(name="each step", style="faint", points=tuple(points)),
                Series(name=f"mean of {_WINDOW} steps", style="main", points=smooth),
            ],
            title=title,
        ),
    )
