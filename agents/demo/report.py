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
from typing import Any, NamedTuple

from turntree.agents.demo.comparison import Comparison, StepComparison, speedup
from turntree.agents.demo.run_record import Point, RunRecord, read_run
from turntree.agents.errors import MissingExtra
from turntree.agents.evaluation.machine import machine_facts
from turntree.agents.files import write_whole
from turntree.agents.viewer.chart import Series, line_chart, moving_average
from turntree.agents.viewer.dialogue_view import branches, bubbles

_WINDOW = 10
"""Steps that the first and the last figures are averaged over."""
_SMOOTH = 5
"""Steps of the moving averages in the charts."""
_PACKAGES = ("turntree", "verl", "torch", "transformers", "ray", "gymnasium", "numpy")


class Figure(NamedTuple):
    """One headline number."""

    name: str
    """What it measures."""
    value: str
    """The number."""
    note: str
    """Value to compare it with."""


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
        episode=run.episode,
        episode_step=run.episode_step,
        bubbles=bubbles(run.episode, run.decode) if run.episode else [],
        prompt=run.tree.prompt if run.tree else "",
        tree=branches(run.tree.root, run.decode) if run.tree else None,
        machine=machine(),
    )


def story(run: RunRecord) -> str:
    """A summary in two sentences."""
    first, last = _ends([point.success for point in run.points])
    sentence = f"In {len(run.points)} training steps the success rate {_change(first, last)}."
    if run.comparison is None:
        return sentence
    ratio = speedup(run.comparison.last_third)
    effect = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times as slow"
    same = "exactly the same dialogues" if run.comparison.equal else "dialogues that are not all the same"
    return f"{sentence} At the end, speculation made the engine {effect}, with {same}."


def figures(run: RunRecord) -> list[Figure]:
    """The headline numbers."""
    window = min(_WINDOW, len(run.points))
    first, last = _ends([point.success for point in run.points])
    shown = [Figure("success rate", f"{last:.0%}", f"last {window} steps; first {window}: {first:.0%}")]
    drafted = [point.tokens_per_step for point in run.points if point.tokens_per_step is not None]
    if drafted:
        first, last = _ends(drafted)
        shown.append(Figure("tokens per verify step", f"{last:.2f}", f"first steps: {first:.2f}; without drafts: 1"))
    if run.comparison is not None:
        steps = run.comparison.last_third
        plain = sum(step.plain.forward_passes for step in steps)
        passes = sum(step.speculative.forward_passes for step in steps)
        shown += [
            Figure("forward passes", f"{passes / plain:.0%}", "of those without speculation, last third"),
            Figure("engine speed", f"{speedup(steps):.2f}x", "without / with speculation, last third"),
        ]
    return shown


def machine() -> list[tuple[str, str]]:
    """Machine and versions of the report."""
    return [("command", shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])), *machine_facts(_PACKAGES)]


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
    plain, drafted = (
        tuple((float(step.step), float(getattr(cost(step), name))) for step in steps)
        for cost in (lambda step: step.plain, lambda step: step.speculative)
    )
    return line_chart(
        [
            Series(name=f"{title} without speculation", style="other", points=plain),
            Series(name=f"{title} with speculation", style="main", points=drafted),
        ],
        title=f"{title} of the compared steps, with and without speculation",
    )


def _totals(comparison: Comparison) -> list[dict[str, Any]]:
    """Rows of the table: all compared steps, and the last third."""
    parts = [("all compared steps", comparison.steps), ("last third", comparison.last_third)]
    return [
        {
            "name": name,
            "passes": [sum(c.forward_passes for c in costs) for costs in _costs(steps)],
            "seconds": [sum(c.seconds for c in costs) for costs in _costs(steps)],
            "tokens": [sum(c.tokens for c in costs) for costs in _costs(steps)],
            "speedup": speedup(steps),
            "equal": sum(step.equal for step in steps),
            "episodes": sum(step.episodes for step in steps),
        }
        for name, steps in parts
    ]


def _costs(steps: Sequence[StepComparison]) -> tuple[list[Any], list[Any]]:
    return [step.plain for step in steps], [step.speculative for step in steps]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    window = min(_WINDOW, len(values))
    return sum(values[:window]) / window, sum(values[-window:]) / window


def _change(first: float, last: float) -> str:
    if abs(last - first) < 0.02:
        return f"stayed at {last:.0%}"
    return f"{'rose' if last > first else 'fell'} from {first:.0%} to {last:.0%}"
