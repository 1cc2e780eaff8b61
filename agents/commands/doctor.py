"""``turntree doctor``."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False) -> None:
    """Say what is installed, which engines and devices there are, and how to get what is missing.

    Ends with status 1 if something that is there does not work.
    """
    import json

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from turntree.agents.commands.installation import Health, examine

    findings = list(examine())
    console = Console()
    if as_json:
        console.print_json(json.dumps([finding._asdict() for finding in findings]))
    else:
        table = Table("part", "", "what", "to do", box=None)
        for part, health, what, fix in findings:
            colour = {Health.OK: "green", Health.MISSING: "yellow", Health.BROKEN: "red"}[health]
            table.add_row(part, f"[{colour}]{health}[/{colour}]", escape(what), escape(fix))
        console.print(table)
    if any(finding.health is Health.BROKEN for finding in findings):
        raise typer.Exit(1)
