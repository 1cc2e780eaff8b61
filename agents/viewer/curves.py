from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from turntree.agents.viewer.chart import Series, line_chart, moving_average
from turntree.agents.viewer.source import Figures, Source

_WINDOW = 5  #: steps in the moving average


class Curve(NamedTuple):
    title: str
    svg: str


_Read = Callable[[Figures], float | None]


def _named(name: str) -> _Read:
    return lambda row: row.number(name)


def _accepted_fraction(row: Figures) -> float | None:
    accepted, drafted = row.number("accepted"), row.number("drafted")
    return accepted / drafted if accepted is not None and drafted is not None and abs(drafted) >= 1 else None


_OF_TRAINER: tuple[tuple[str, _Read], ...] = (
    ("mean reward", _named("critic/score/mean")),
    ("sampled tokens per episode", _named("response_length/mean")),
    ("policy entropy, nats per token", _named("actor/entropy")),
    ("seconds per step", _named("timing_s/step")),
    ("gradient norm", _named("actor/grad_norm")),
)
_OF_ENGINE: tuple[tuple[str, _Read], ...] = (
    ("tokens per forward pass", _named("tokens_per_forward_pass")),
    ("accepted fraction of drafted tokens", _accepted_fraction),
    ("engine seconds per step", _named("seconds")),
)
_REPLAYED = (("forward passes", "forward_passes"), ("engine seconds", "seconds"))


def curves(source: Source) -> list[Curve]:
    """Return charts of the run's metrics over training steps.

    Raises:
        RecordError: If a metric is not a number.
    """
    rows = [(title, read, source.metrics) for title, read in _OF_TRAINER]
    rows += [(title, read, source.engine) for title, read in _OF_ENGINE]
    found = [_curve(title, read, figures) for title, read, figures in rows]
    found += [_replayed_curve(title, _named(name), source) for title, name in _REPLAYED]
    return [curve for curve in found if curve is not None]


def _points(read: _Read, rows: tuple[Figures, ...]) -> list[tuple[float, float]]:
    return [(float(row.step), value) for row in rows if (value := read(row)) is not None]


def _replayed_curve(title: str, read: _Read, source: Source) -> Curve | None:
    plain, drafted = (tuple(_points(read, rows)) for rows in (source.plain, source.drafted))
    if min(len(plain), len(drafted)) < 2:
        return None
    title = f"{title} of replayed steps; dashed: without drafts"
    lines = [
        Series(name="without drafts", style="other", points=plain),
        Series(name="with drafts", style="main", points=drafted),
    ]
    return Curve(title, line_chart(lines, title=title))


def _curve(title: str, read: _Read, rows: tuple[Figures, ...]) -> Curve | None:
    points = _points(read, rows)
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
