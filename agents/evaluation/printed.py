from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from turntree.agents.episodes.failures import program_error
from turntree.agents.evaluation.paired import Paired
from turntree.agents.evaluation.table import EvalResult, rows, summary, warnings

_SHOWN = 10  #: changed episodes to list


def print_result(result: EvalResult) -> None:
    table = Table("", "", title=f"{result.title}, {result.model}", show_header=False)
    for name, value in rows(result).items():
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for problem in _problems(result):
        console.print(problem, markup=False, highlight=False, soft_wrap=True)


def print_rows(results: Sequence[EvalResult]) -> None:
    head, *cells = summary(results)
    one = len({result.title for result in results}) == 1
    shown = [at for at, name in enumerate(head) if not name.startswith(("pass@", "maj@")) and not (one and not at)]
    table = Table(*(Column(head[at], overflow="fold") for at in shown), title=results[0].title if one else None)
    for row in cells:
        table.add_row(*(row[at] for at in shown))
    console = Console()
    console.print(table)
    said: dict[str, list[str]] = {}
    for result in results:
        for problem in _problems(result):
            said.setdefault(problem, []).append(result.model)
    for problem, models in said.items():
        console.print(f"{', '.join(models)}: {problem}", markup=False, highlight=False, soft_wrap=True)


def _problems(result: EvalResult) -> list[str]:
    found = [f"warning: {warning}" for warning in warnings(result)]
    failures = (episode.failure for episode in result.episodes)
    for name, causes in (("failure", failures), ("program error", map(program_error, result.episodes))):
        if cause := next(filter(None, causes), ""):
            found.append(f"first {name}: {cause}")
    return found


def print_difference(title: str, found: Paired) -> None:
    table = Table("", "", title=title, show_header=False)
    for name, one in (("difference", found.difference), ("of independent evaluations", found.independent)):
        table.add_row(name, f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f}), {one.tasks} tasks")
    table.add_row("pairs equal token for token", str(found.equal))
    table.add_row("pairs left out", str(found.left_out))
    if all(found.passes):
        table.add_row("forward passes", f"{found.passes[0]} and {found.passes[1]}")
        table.add_row("share of plain decoding's passes", f"{found.share_of_passes:.2f}")
    console = Console()
    console.print(table)
    for change in found.changes[:_SHOWN]:
        line = f"{change.task} #{change.sample}: {change.before:g} to {change.after:g}, {change.why}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(found.changes) > _SHOWN:
        console.print(f"{len(found.changes) - _SHOWN} more changed")
