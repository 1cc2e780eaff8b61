from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from turntree.agents.commands.options import JsonOption

RewardOption = Annotated[
    list[str] | None,
    typer.Option("--reward", metavar="NAME[=WEIGHT]", help="Reward; repeatable. Weight 0 only reports it."),
]
AnswerFormatOption = Annotated[
    str | None, typer.Option(help="Data set whose rules compare answers of unknown data sets, e.g. math.")
]


def score_command(
    file: Annotated[Path, typer.Argument(help="JSONL file with prediction (or turns, messages) and gold.")],
    reward: RewardOption = None,
    answer_format: AnswerFormatOption = None,
    prediction: Annotated[str, typer.Option(help="Field with the policy's text.")] = "prediction",
    gold: Annotated[str, typer.Option(help="Field with the right answer.")] = "gold",
    out: Annotated[Path | None, typer.Option(help="Output file; default: FILE.scored.jsonl.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score the texts of a file and print a table per data set."""
    from turntree.agents.scoring.score_file import Fields, score_file
    from turntree.agents.scoring.scorer import Scorer
    from turntree.rewards import MissingQuestion

    target = out or file.with_name(f"{file.stem}.scored.jsonl")
    fields = Fields(prediction=prediction, gold=gold)
    with warnings.catch_warnings():
        # Reported below, after the table.
        warnings.simplefilter("ignore", MissingQuestion)
        tallies = score_file(
            file, target, Scorer(parse_rewards(reward or ["answer"]), answer_format=answer_format), fields
        )
    rows = {source or "(none)": asdict(tally) for source, tally in tallies.items()}
    _show("data set", rows, target, as_json)
    if missing := sum(tally.without_question for tally in tallies.values()):
        typer.echo(
            f"{missing} rows have no question, so an answer that copies it counts as right; add the field question",
            err=True,
        )


def rescore_command(
    run: Annotated[Path, typer.Argument(help="Run folder, or episode file.")],
    reward: RewardOption = None,
    answer_format: AnswerFormatOption = None,
    out: Annotated[Path | None, typer.Option(help="Output file; default: rescored.jsonl next to the input.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score the episodes of a recorded run again; the recorded file stays unchanged."""
    from turntree.agents.scoring.rescore import rescore
    from turntree.agents.scoring.scorer import Scorer

    default_target = run.with_name(f"{run.stem}.rescored.jsonl") if run.is_file() else run / "rescored.jsonl"
    target = out or default_target
    changes = rescore(run, target, Scorer(parse_rewards(reward or ["answer"]), answer_format=answer_format))
    _show("file", {name: asdict(change) for name, change in changes.items()}, target, as_json)
    if not as_json:
        episodes, compared = (
            sum(getattr(change, name) for change in changes.values()) for name in ("episodes", "compared")
        )
        newly = sum(change.newly_scored for change in changes.values())
        typer.echo(
            f"compared {compared} of {episodes} episodes; {newly} episodes had no reward before and have one now"
        )


def parse_rewards(words: Sequence[str]) -> dict[str, float]:
    """Return weights by name from options such as ``answer`` and ``few_turns=0.1``."""
    from turntree.agents.errors import AgentError

    rewards: dict[str, float] = {}
    for word in words:
        name, equals, weight = word.partition("=")
        if name in rewards:
            raise AgentError(f"--reward {name} is given twice")
        try:
            rewards[name] = float(weight) if equals else 1.0
        except ValueError as error:
            raise AgentError(f"--reward takes NAME or NAME=WEIGHT, for example few_turns=0.1; got {word!r}") from error
    return rewards


def _show(first: str, rows: Mapping[str, Mapping[str, Any]], out: Path, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from turntree.agents.files import json_value

    console = Console()
    if as_json:
        console.print_json(json.dumps({"rows": json_value(rows), "out": str(out)}))
        return
    columns = list(next(iter(rows.values()), {}))
    table = Table(*(Column(name, overflow="fold") for name in (first, *columns)), box=None)
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
