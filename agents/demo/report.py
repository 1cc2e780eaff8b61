"""The report of a run: one self-contained HTML file.

No script, font or picture is fetched. Everything from the run passes
through the template's escaping; the charts, which are markup already,
consist of numbers and escaped text.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from turntree.agents.demo.compared import Comparison, StepComparison, passes_saved, quartiles, seconds_saved
from turntree.agents.demo.headline import effect, figures, story
from turntree.agents.demo.run_record import Point, RunRecord, read_run
from turntree.agents.errors import MissingExtra
from turntree.agents.evaluation.machine import machine_facts
from turntree.agents.files import write_whole
from turntree.agents.viewer.chart import Series, line_chart, moving_average
from turntree.envs.catalogue import find_entry
from turntree.spec_tree.budget.choices import summed

_SMOOTH = 5
"""Steps of the moving averages in the charts."""
_AROUND = 5
"""Compared steps whose median and quartiles make a point of a line and of its band."""
_PACKAGES = ("turntree", "verl", "torch", "transformers", "ray", "gymnasium", "numpy")


def write_report(out: Path) -> Path:
    """Write ``report.html`` into the folder of a run.

    Args:
        out: Folder of the run; ``comparison.json`` and the episodes may be missing.

    Returns:
        Path of the report.

    Raises:
        FileNotFoundError: If the folder holds no metrics.
        RecordError: If the records are damaged or empty.
        MissingExtra: If jinja2 is not installed.
    """
    page = render(read_run(out))
    report = out / "report.html"
    write_whole(report, page.encode("utf-8", "replace"))
    return report


def render(run: RunRecord) -> str:
    """The page of ``run``."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("the report", "local") from error

    files = resources.files("turntree.agents.demo")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files.joinpath("report.html").read_text(encoding="utf-8"))
    return template.render(
        style=Markup(files.joinpath("report.css").read_text(encoding="utf-8")),
        story=story(run),
        figures=figures(run),
        charts={name: Markup(chart) for name, chart in _charts(run).items()},
        steps=len(run.points),
        smooth=_SMOOTH,
        points=run.points,
        comparison=run.comparison,
        totals=_totals(run.comparison) if run.comparison else [],
        around=_AROUND,
        effect=effect(run.comparison) if run.comparison else "",
        choices=_choices(run.comparison) if run.comparison else [],
        example=run.example,
        entry=find_entry(run.example.env_id) if run.example else None,
        commands={name: shlex.join(["turntree", name, str(run.root)]) for name in ("view", "tree")},
        machine=machine(),
    )


def machine() -> list[tuple[str, str]]:
    """Machine and versions of the report."""
    program = Path(sys.argv[0])
    started = ["turntree"] if program.suffix == ".py" else [program.name]  # as `python -m turntree.agents.cli`
    return [("command", shlex.join([*started, *sys.argv[1:]])), *machine_facts(_PACKAGES)]


def _charts(run: RunRecord) -> dict[str, str]:
    charts = {"success": _training_chart(run.points, [p.success for p in run.points], "success rate", top=1.0)}
    drafted = [point for point in run.points if point.tokens_per_step is not None]
    if drafted:
        values = [point.tokens_per_step or 0.0 for point in drafted]
        charts["tokens"] = _training_chart(drafted, values, "tokens per verify step")
    if run.comparison is not None:
        for name, title in (("forward_passes", "forward passes"), ("seconds", "engine seconds")):
            charts[name] = _comparison_chart(run.comparison.steps, name, title)
    return charts


def _training_chart(points: Sequence[Point], values: Sequence[float], title: str, *, top: float | None = None) -> str:
    steps = [point.step for point in points]
    return line_chart(
        [
            Series(name=title, style="faint", points=tuple(zip(steps, values, strict=True))),
            Series(
                name=f"{title}, mean of {_SMOOTH}",
                style="main",
                points=tuple(zip(steps, moving_average(values, _SMOOTH), strict=True)),
            ),
        ],
        title=f"{title} over the training steps: from {values[0]:.2f} to {values[-1]:.2f}",
        top=top,
    )


def _comparison_chart(steps: Sequence[StepComparison], name: str, title: str) -> str:
    series = []
    for way, style in (("plain", "other"), ("speculative", "main")):
        values = [float(getattr(getattr(step, way), name)) for step in steps]
        around = [values[max(0, i - _AROUND // 2) : i + _AROUND // 2 + 1] for i in range(len(values))]
        at = [float(step.step) for step in steps]
        label = f"{title} {'without' if way == 'plain' else 'with'} speculation"
        series += [
            Series(name=label, style=f"{style} dots", points=tuple(zip(at, values, strict=True))),
            Series(
                name=f"{label}, median of {_AROUND}",
                style=style,
                points=tuple(zip(at, map(median, around), strict=True)),
                band=tuple((x, *quartiles(near)) for x, near in zip(at, around, strict=True)),
            ),
        ]
    return line_chart(series, title=f"{title} of the compared steps, with and without speculation")


def _totals(comparison: Comparison) -> list[dict[str, Any]]:
    """Rows of the table: all compared steps, the first third, and the last."""
    parts = [
        ("all compared steps", comparison.steps),
        ("first third", comparison.first_third),
        ("last third", comparison.last_third),
    ]
    return [
        {
            "name": name,
            "passes": [sum(c.forward_passes for c in costs) for costs in _costs(steps)],
            "seconds": [sum(c.seconds for c in costs) for costs in _costs(steps)],
            "tokens": [sum(c.tokens for c in costs) for costs in _costs(steps)],
            "passes_saved": passes_saved(steps),
            "seconds_saved": seconds_saved(steps),
            "equal": sum(step.equal for step in steps),
            "episodes": sum(step.episodes for step in steps),
        }
        for name, steps in parts
    ]


def _choices(comparison: Comparison) -> list[dict[str, Any]]:
    """Rows of the budget's table: the sums of the last third, by the number of requests."""
    return [
        {"span": str(one.most_rows) if one.most_rows < 3 else f"{one.most_rows // 2 + 1} to {one.most_rows}", "of": one}
        for one in summed(choice for step in comparison.last_third for choice in step.choices)
    ]


def _costs(steps: Sequence[StepComparison]) -> tuple[list[Any], list[Any]]:
    return [step.plain for step in steps], [step.speculative for step in steps]
