"""Line charts as inline SVG, and the charts of a training run. Colours come from the page; all text is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from turntree.agents.viewer.source import Figures, Source

WIDTH, HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 14, 38
_TICKS = 5
_SMALLEST = 1e-300  #: smaller floats lose precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str  #: label in the legend and tooltips
    style: str  #: CSS class: main, other or faint
    points: tuple[tuple[float, float], ...]  #: (x, y), finite, sorted by x
    #: (x, low, high) of a shaded band below the line, finite, sorted by x
    band: tuple[tuple[float, float, float], ...] = ()


def line_chart(series: Sequence[Series], *, title: str, top: float | None = None, across: str = "training step") -> str:
    """Return an SVG element.

    Args:
        series: Lines, at least one of which has a point; later lines are drawn on top of earlier lines.
        title: Description for screen readers.
        top: Highest value of the vertical axis; ``None`` fits the data. The axis starts at 0, or at negative data.
        across: Label of the horizontal axis.
    """
    xs = [x for line in series for x, _ in line.points]
    low, high = min(xs), max(xs)
    ys = [0.0] + [y for line in series for point in (*line.points, *line.band) for y in point[1:]]
    step = _round_up(((top or max(ys)) - min(ys)) / (_TICKS - 1))
    # The small offsets keep rounding errors from adding a tick.
    first, last = math.floor(min(ys) / step + 1e-9), math.ceil(max(ys) / step - 1e-9)
    floor, ceiling = step * first, top or step * (last if last > first else first + 1)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        fraction = (x - low) / (high - low) if high > low else 0.5
        return (
            _LEFT + fraction * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - min((y - floor) / (ceiling - floor), 1.0) * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in range(first, round(ceiling / step) + 1):
        _, y = to_pixels(low, tick * step)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>'
        )
    for value in _whole_ticks(low, high):
        x, _ = to_pixels(value, floor)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        )
    parts.append(
        f'<text class="tick" x="{(WIDTH + _LEFT - _RIGHT) / 2}" y="{HEIGHT - 4}" '
        f'text-anchor="middle">{escape(across)}</text>'
    )
    for line in series:
        if line.band:
            edges = [to_pixels(x, y) for x, y, _ in line.band] + [to_pixels(x, y) for x, _, y in reversed(line.band)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in edges)
            parts.append(f'<polygon class="band {escape(line.style)}" points="{path}"/>')
    parts += [_line(line, [to_pixels(x, y) for x, y in line.points], across) for line in series if line.points]
    return "".join([*parts, "</svg>"])


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of this value and up to ``window - 1`` values before it.

    >>> moving_average([1.0, 3.0, 5.0], 2)
    [1.0, 2.0, 4.0]
    """
    windows = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in windows]


def _line(line: Series, positions: Sequence[tuple[float, float]], across: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(f"{line.name}, {across} {x_value:g}: {value:.3g}")}'
        "</title></circle>"
        for (x, y), (x_value, value) in zip(positions, line.points, strict=True)
    )
    return f'<g class="line {escape(line.style)}"><polyline points="{path}"/>{dots}</g>'


def _whole_ticks(low: float, high: float) -> list[float]:
    step = max(1.0, _round_up((high - low) / _TICKS)) if high > low else 1.0
    first = math.ceil(low / step) * step
    inner = [first + step * n for n in range(math.floor((high - first) / step) + 1)] if first <= high else []
    return inner if low in inner else [low, *(value for value in inner if value - low > step / 2)]


def _round_up(value: float) -> float:
    # Round up to 1, 2, 2.5 or 5 times a power of ten.
    if value < _SMALLEST:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * (1 - 1e-9))


_WINDOW = 5  #: steps in the moving average


class Curve(NamedTuple):
    title: str
    svg: str


_Read = Callable[[Figures], float | None]  #: returns a curve's value at one step


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
    rows = [(title, read, source.metrics) for title, read in _OF_TRAINER]
    rows += [(title, read, source.engine) for title, read in _OF_ENGINE]
    all_curves = [_curve(title, read, figures) for title, read, figures in rows]
    all_curves += [_replayed_curve(title, _named(name), source) for title, name in _REPLAYED]
    return [curve for curve in all_curves if curve is not None]


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
