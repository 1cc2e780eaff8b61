from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def compare_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="Episodes of the first policy (`turntree eval --out`).")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Episodes of the second one, on the same tasks.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
) -> None:
    """Compare two finished evaluations task by task: the difference with its interval, and what changed.

    Example: turntree compare before.jsonl after.jsonl
    """
    from rich.console import Console

    from turntree.agents.evaluation.compared import FinishedEvaluation, compare_files
    from turntree.agents.evaluation.table import print_difference
    from turntree.agents.files import json_value

    first, second = FinishedEvaluation.read(before), FinishedEvaluation.read(after)
    found = compare_files(first, second)
    console = Console()
    if as_json:
        console.print_json(json.dumps(json_value(found.figures())))
        return
    print_difference(f"{second.model} against {first.model}", found.paired)
    for line in found.notes:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
