"""Colours, axes, lines and frame of the charts, as SVG text.

GitHub shows an SVG without the page's style sheet, so each picture is drawn twice, in GitHub's light and dark colours.
Each SVG element has a line of its own, which keeps diffs readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

SCHEMES = {
    "light": {
        "paper": "#ffffff", "card": "#f6f8fa", "ink": "#1f2328", "soft": "#59636e", "grid": "#d8dee4",
        "blue": "#0969da", "orange": "#bc4c00", "green": "#1a7f37", "purple": "#8250df", "grey": "#6e7781",
    },
    "dark": {
        "paper": "#0d1117", "card": "#161b22", "ink": "#e6edf3", "soft": "#9198a1", "grid": "#30363d",
        "blue": "#58a6ff", "orange": "#f0883e", "green": "#3fb950", "purple": "#bc8cff", "grey": "#9198a1",
    },
}  # fmt: skip
LINES = ("blue", "orange", "green", "purple", "grey")
LETTER = 6.4  # mean width of a 12 px letter, rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a plot, with ticks at the given values."""

    label: str
    ticks: Sequence[float]
    low: float
    high: float
    logarithmic: bool = False
    unit: str = ""  # follows the number of each tick

    def share(self, value: float) -> float:
        """Return the position of ``value``: 0 at the lower end of the axis, 1 at the upper end."""
        low, high, value = (math.log(x) if self.logarithmic else x for x in (self.low, self.high, value))
        return (value - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot. A line without a ``name`` is not in the legend."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high)
    dots: bool = True
    joined: bool = True
    faint: bool = False
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines over two axes, below a title, the hardware and settings, and a legend."""

    title: str
    measured_on: str
    across: Axis
    up: Axis
    lines: Sequence[Line]
    level: float | None = None  # a dashed horizontal line
    mark: float | None = None  # a dotted vertical line
    mark_text: str = ""

    def draw(self, left: float, top: float, width: float, height: float) -> list[str]:
        """Return SVG elements that fill the rectangle."""
        rows = self._legend(left, top + 44, width)
        area = Area(left + 48, top + 44 + 18 * len(rows) + 8, left + width - 14, top + height - 42)
        parts = [text(left, top + 12, self.title, "bold"), text(left, top + 29, self.measured_on, "soft")]
        parts += [part for row in rows for part in row]
        parts += self._axes(area, (left, top, height))
        if self.level is not None:
            y = area.y(self.up.share(self.level))
            parts += [f'<path class="level" d="M{area.left:.1f} {y:.1f}H{area.right:.1f}"/>']
        if self.mark is not None:
            x = area.x(self.across.share(self.mark))
            parts += [f'<path class="mark" d="M{x:.1f} {area.top:.1f}V{area.bottom:.1f}"/>']
            parts += [text(x + 6, area.top + 12, self.mark_text, "soft")]
        for line in self.lines:
            parts += self._line(line, area)
        return parts

    def _legend(self, left: float, top: float, width: float) -> list[list[str]]:
        """Return the legend's entries, in as few rows as fit the width."""
        named = [line for line in self.lines if line.name]
        widths = [30 + LETTER * len(line.name) for line in named]
        rows: list[list[str]] = []
        at = width
        for line, wide in zip(named, widths, strict=True):
            if at + wide > width:
                rows.append([])
                at = 0
            x, y = left + at, top + 18 * (len(rows) - 1)
            key = f'<path class="line {line.colour}" d="M{x:.1f} {y:.1f}h16"/>' if line.joined else ""
            dot = _dot(x + 8, y, line) if line.dots else ""
            rows[-1].append(f"{key}{dot}{text(x + 22, y + 4, line.name)}")
            at += wide
        return rows

    def _axes(self, area: Area, corner: tuple[float, float, float]) -> list[str]:
        left, top, height = corner
        parts = []
        for value in self.up.ticks:
            y = area.y(self.up.share(value))
            parts.append(f'<path class="grid" d="M{area.left:.1f} {y:.1f}H{area.right:.1f}"/>')
            parts.append(text(area.left - 6, y + 4, f"{value:g}{self.up.unit}", "", "end"))
        for value in self.across.ticks:
            x = area.x(self.across.share(value))
            parts.append(text(x, area.bottom + 17, f"{value:g}{self.across.unit}", "", "middle"))
        middle = (area.top + area.bottom) / 2
        parts.append(text((area.left + area.right) / 2, top + height - 6, self.across.label, "", "middle"))
        turned = f'transform="rotate(-90 {left + 10:.1f} {middle:.1f})"'
        return [*parts, text(left + 10, middle, self.up.label, "", "middle", turned)]

    def _line(self, line: Line, area: Area) -> list[str]:
        def at(x: float, y: float) -> tuple[float, float]:
            return area.x(self.across.share(x)), area.y(self.up.share(y))

        def joined(points: Iterable[tuple[float, float]]) -> str:
            return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

        parts = []
        if line.band:
            edges = [at(x, low) for x, low, _ in line.band] + [at(x, high) for x, _, high in reversed(line.band)]
            parts.append(f'<polygon class="band {line.colour}" points="{joined(edges)}"/>')
        if line.joined:
            path = joined(at(x, y) for x, y in line.points)
            faint = " faint" if line.faint else ""
            parts.append(f'<polyline class="line {line.colour}{faint}" points="{path}"/>')
        if line.dots:
            for x, y in line.points:
                tooltip = f"{line.name}: {self.across.label} {x:.4g}, {y:.3g}"
                parts.append(_dot(*at(x, y), line, tooltip))
        return parts


@dataclass(frozen=True, slots=True)
class Area:
    """The rectangle between the axes."""

    left: float
    top: float
    right: float
    bottom: float

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        return self.bottom - share * (self.bottom - self.top)


def _dot(x: float, y: float, line: Line, tooltip: str = "") -> str:
    kind = f"{line.colour} hollow" if line.hollow else line.colour
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.2">{title}</circle>'


def text(x: float, y: float, words: str, style: str = "", anchor: str = "", further: str = "") -> str:
    """Return one line of text; ``anchor`` is SVG's ``text-anchor``."""
    named = {"class": style, "text-anchor": anchor}
    attributes = "".join(f' {name}="{value}"' for name, value in named.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}{f" {further}" if further else ""}>{escape(words)}</text>'


def sheet(scheme: str, title: str, below: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return a whole SVG file; ``title`` and the line ``below`` it take the first 56 units."""
    colour = SCHEMES[scheme]
    rules = [
        f"text{{font:12px -apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:{colour['ink']}}}",
        f".bold{{font-weight:600}}.head{{font-size:16px;font-weight:600}}.soft{{fill:{colour['soft']}}}",
        f".grid{{stroke:{colour['grid']}}}.line{{fill:none;stroke-width:2}}.faint{{stroke-width:1;opacity:.55}}",
        f".level,.mark{{stroke:{colour['soft']};stroke-dasharray:5 4}}.mark{{stroke-dasharray:2 3}}",
        f".card{{fill:{colour['card']};stroke:{colour['grid']}}}",
        *(f".line.{c}{{stroke:{colour[c]}}}.band.{c},.dot.{c}{{fill:{colour[c]}}}" for c in LINES),
        *(f".dot.hollow.{c}{{fill:{colour['paper']};stroke:{colour[c]};stroke-width:1.6}}" for c in LINES),
        ".band{opacity:.2}",
    ]
    named = f'role="img" aria-label="{escape(f"{title}. {below}")}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {named}>',
            f"<style>{''.join(rules)}</style>",
            f'<rect width="{width:g}" height="{height:g}" fill="{colour["paper"]}"/>',
            text(16, 26, title, "head"),
            text(16, 45, below, "soft"),
            *parts,
            "</svg>\n",
        ]
    )


def ticks(step: float, high: float) -> list[float]:
    """Return the multiples of ``step`` from 0 to ``high``."""
    return [step * count for count in range(math.floor(high / step + 1e-9) + 1)]
