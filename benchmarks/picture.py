"""README's picture: tokens produced per forward pass while a policy trains, with drafts and without.

The figures are those of ``results/algorithms.json``: GRPO of the demo's policy, three seeds each way. The line is the
mean of the seeds, the band reaches from the lowest to the highest.

    python benchmarks/picture.py [--json benchmarks/results/algorithms.json] [--out docs]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from turntree.agents.viewer.chart import HEIGHT, WIDTH, Series, line_chart

WAYS = (("none", "other", "without drafts"), ("tree", "main", "with drafts"))
"""Mode of the training, class of its line, and its name in the legend."""
COLOURS = {
    "light": {"paper": "#ffffff", "ink": "#1f2328", "grid": "#d8dee4", "main": "#0b6e99", "other": "#6e7781"},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "grid": "#30363d", "main": "#58b6e0", "other": "#9198a1"},
}
HEAD = 46
"""Units above the chart, for its title and legend."""


def lines(runs: dict[str, Any]) -> list[Series]:
    """A line and its band for each way."""
    found = []
    for mode, style, name in WAYS:
        seeds = [run["steps"] for run in runs.values() if (run["algorithm"], run["mode"]) == ("grpo", mode)]
        steps = [
            (rows[0]["step"], [row["turntree/tokens_per_forward_pass"] for row in rows])
            for rows in zip(*seeds, strict=True)
        ]
        points = tuple((float(step), statistics.fmean(values)) for step, values in steps)
        band = tuple((float(step), min(values), max(values)) for step, values in steps)
        found.append(Series(name=name, style=style, points=points, band=band))
    return found


def picture(runs: dict[str, Any], scheme: str) -> str:
    """One SVG file in the colours of ``scheme``, ``light`` or ``dark``."""
    colour, series = COLOURS[scheme], lines(runs)
    title = "Tokens produced per forward pass, GRPO on the CPU, 3 seeds"
    rules = [
        f".grid{{stroke:{colour['grid']}}}text{{font:12px sans-serif;fill:{colour['ink']}}}.line circle{{opacity:0}}",
        ".line polyline{fill:none;stroke-width:2.5}.band{opacity:.25}",
        *(f".line.{w} polyline{{stroke:{colour[w]}}}.band.{w},.key.{w}{{fill:{colour[w]}}}" for _, w, _ in WAYS),
    ]
    legend = "".join(
        f'<rect class="key {line.style}" x="{46 + 190 * place}" y="-17" width="14" height="4"/>'
        f'<text x="{66 + 190 * place}" y="-11">{line.name}: {line.points[-1][1]:.1f} at last</text>'
        for place, line in enumerate(series)
    )
    frame = f'x="0" y="{-HEAD}" width="{WIDTH}" height="{HEIGHT + HEAD}"'
    head = f'<rect {frame} fill="{colour["paper"]}"/><text x="46" y="-30" font-weight="bold">{title}</text>{legend}'
    chart = line_chart(series, title=title).partition(">")[2]
    box = f'viewBox="0 {-HEAD} {WIDTH} {HEIGHT + HEAD}" role="img" aria-label="{title}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}><style>{"".join(rules)}</style>{head}{chart}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/algorithms.json"))
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pictures")
    args = parser.parse_args()
    runs = json.loads(args.json.read_text(encoding="utf-8"))["runs"]
    for scheme in COLOURS:
        (args.out / f"passes_{scheme}.svg").write_text(picture(runs, scheme), encoding="utf-8")


if __name__ == "__main__":
    main()
