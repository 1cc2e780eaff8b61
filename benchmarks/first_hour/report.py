from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from first_hour.running import Result
from first_hour.setting import Row
from first_hour.stages import RECORDED
from turntree.agents.viewer.chart import HEIGHT, WIDTH, Series, line_chart

STYLE = """<style>
.grid{stroke:#ddd}.tick,.name{font:11px sans-serif;fill:#555}.line polyline{fill:none;stroke-width:2}
.s0{stroke:#0b6e99}.s1{stroke:#d9822b}.s2{stroke:#4d7c0f}.s3{stroke:#7c3aed}.s4{stroke:#b91c1c}.s5{stroke:#888}
</style>"""
STYLES = 6
LINE = 15


def show(console: Console, name: str, result: Result) -> None:
    if not result["rows"]:
        console.print(f"{name}: {result['note']}", highlight=False, markup=False, soft_wrap=True)
        return
    engines = " ".join(f"{package} {version}" for package, version in result["versions"].items())
    console.print(table(f"{name}, {result['seconds']:.0f} s; {engines}", result["rows"]))
    if result["note"]:
        console.print(f"{name}: {result['note']}", highlight=False, markup=False, soft_wrap=True)


def table(title: str, rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    drawn = Table(*(column.replace("_", " ") for column in columns), title=title)
    for row in rows:
        drawn.add_row(*(_cell(row.get(column)) for column in columns))
    return drawn


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def speeds(stages: Mapping[str, Result]) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for stage, label in (("local", "local"), ("local-trained", "local, trained")):
        for row in _rows(stages, stage):
            if row["way"] == "engine + drafts":
                found.setdefault(f"{label}: trees", {})[row["batch"]] = row["ratio_to_plain"]
    return found


def compared(stages: Mapping[str, Result]) -> list[Row]:
    """Return how many times faster each way is than the first way of the same engine, on the recorded dialogues."""
    found = []
    for engine, ways in RECORDED.items():
        first = {_what(row): row for row in _rows(stages, f"{engine}-{ways[0]}")}
        for row in (row for way in ways for row in _rows(stages, f"{engine}-{way}")):
            base = first.get(_what(row))
            found.append(row | {f"{time} ratio": base and round(base[time] / row[time], 3) for time in ("s", "half s")})
    return found


def _what(row: Row) -> tuple[Any, ...]:
    return row["trace"], row["at once"], row["epoch"]


def _rows(stages: Mapping[str, Result], name: str) -> list[Row]:
    rows: list[Row] = stages.get(name, {}).get("rows", [])
    return rows


def plot(stages: Mapping[str, Result], file: Path) -> bool:
    """Plot the speeds over the number of requests; return whether there was anything to plot."""
    lines = [
        Series(
            name=name,
            style=f"s{index % STYLES}",
            points=tuple((math.log2(batch), ratio) for batch, ratio in sorted(points.items())),
        )
        for index, (name, points) in enumerate(speeds(stages).items())
    ]
    if not lines:
        return False
    picture = line_chart(lines, title="Tokens a second over plain decoding", across="requests at once, log2")
    legend = "".join(
        f'<g class="{line.style}"><path d="M8 {y - 4} h20" stroke-width="2"/></g>'
        f'<text class="name" x="34" y="{y}">{escape(line.name)}</text>'
        for y, line in zip(range(HEIGHT + LINE, HEIGHT + LINE * (len(lines) + 1), LINE), lines, strict=True)
    )
    tall = f'viewBox="0 0 {WIDTH} {HEIGHT + LINE * (len(lines) + 1)}"'
    picture = picture.replace(f'viewBox="0 0 {WIDTH} {HEIGHT}"', f'xmlns="http://www.w3.org/2000/svg" {tall}', 1)
    file.write_text(picture.replace(">", f">{STYLE}", 1).replace("</svg>", f"{legend}</svg>") + "\n")
    return True
