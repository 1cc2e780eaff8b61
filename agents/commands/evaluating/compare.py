from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from turntree.agents.commands.options import JsonOption


def compare_command(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="Episode file of the first policy (`turntree eval --out`).")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Episode file of the second policy, same tasks.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two finished evaluations task by task: the difference, its interval, and changed episodes.

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
