"""The results of evaluations in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from turntree.agents.evaluation.paired import Paired
from turntree.agents.evaluation.table import EvalResult, rows, summary, warnings

_SHOWN = 10
"""Changed episodes that are listed."""


def print_result(result: EvalResult) -> None:
    """Print the table of one evaluation, its warnings and its first failure."""
    table = Table("", "", title=f"{result.title}, {result.model}", show_header=False)
    for name, value in rows(result).items():
        table.add_row(name, value)
    console = Console()
    console.print(table)
    _print_problems(console, result)


def print_rows(results: Sequence[EvalResult]) -> None:
    """Print one table with a row for each evaluation, and below it the warnings and the first failure of each."""
    head, *cells = summary(results)
    table = Table(*(Column(name, overflow="fold") for name in head), box=None)
    for row in cells:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for result in results:
        _print_problems(console, result, f"{result.model}: ")


def _print_problems(console: Console, result: EvalResult, where: str = "") -> None:
    for warning in warnings(result):
        console.print(f"{where}warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    failure = next((episode.failure for episode in result.episodes if episode.failure), None)
    if failure is not None:
        console.print(f"{where}first failure: {failure}", markup=False, highlight=False)


def print_difference(title: str, found: Paired) -> None:
    """Print the table of a second policy against a first one, and the episodes that changed."""
    table = Table("", "", title=title, show_header=False)
    for name, one in (("difference", found.difference), ("of independent evaluations", found.independent)):
        table.add_row(name, f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f}), {one.tasks} tasks")
    table.add_row("pairs equal token for token", str(found.equal))
    table.add_row("pairs left out", str(found.left_out))
    table.add_row("forward passes", f"{found.passes[0]} and {found.passes[1]}")
    table.add_row("share of plain decoding's passes", f"{found.share_of_passes:.2f}")
    console = Console()
    console.print(table)
    for change in found.changes[:_SHOWN]:
        line = f"{change.task} #{change.sample}: {change.before:g} to {change.after:g}, {change.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(found.changes) > _SHOWN:
        console.print(f"{len(found.changes) - _SHOWN} more changed")
