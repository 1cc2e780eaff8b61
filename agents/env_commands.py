"""``turntree check``, ``turntree play`` and ``turntree new env``, and the words by which commands name environments."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from turntree.envs import Env

EnvId = Annotated[str, typer.Argument(metavar="ENV_ID", help="An environment of `turntree list`, or MODULE:ID.")]
DataOption = Annotated[str | None, typer.Option(help="Tasks: JSONL, Parquet or a data set id.")]
EnvArgOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the environment; repeatable.")
]


def check_command(
    env_id: EnvId,
    data: DataOption = None,
    env_arg: EnvArgOption = None,
    turn: Annotated[
        list[str] | None, typer.Option(help="A turn of the script to play; repeatable. Else the tools are called.")
    ] = None,
) -> None:
    """Check that an environment keeps the rules: seeds, snapshots, infos, ends."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from turntree.envs import check_environment

    make_env = env_maker(env_id, env_arguments(env_arg or (), data=data))
    checked_env(make_env, env_id)
    findings = check_environment(make_env, turn)
    table = Table("", "rule", "what is wrong", box=None)
    for finding in findings:
        table.add_row("ok" if finding.passed else "FAILED", finding.check, escape(finding.problem))
    Console().print(table)
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)


def play_command(
    env_id: EnvId,
    data: DataOption = None,
    index: Annotated[int | None, typer.Option(min=0, help="Number of the task; without it one is drawn.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draw and of the environment.")] = None,
    tool_format: Annotated[str | None, typer.Option(help="How tool calls are shown and read.")] = None,
    env_arg: EnvArgOption = None,
) -> None:
    """Play an environment yourself, in the terminal."""
    from rich.console import Console
    from rich.markup import escape

    from turntree.agents.play import HELP, play

    make_env = env_maker(env_id, env_arguments(env_arg or (), data=data, tool_format=tool_format))
    env = checked_env(make_env, env_id)
    console = Console()

    def show(who: str, text: str) -> None:
        console.print(f"[bold]{escape(who)}[/bold]  {escape(text)}", highlight=False)

    def ask() -> str:
        line = sys.stdin.readline() if not sys.stdin.isatty() else console.input("[bold]>[/bold] ") + "\n"
        if not line:
            raise EOFError
        return line.rstrip("\n")

    show("help", HELP)
    try:
        played = play(env, ask, show, seed=seed, options=None if index is None else {"index": index})
    finally:
        env.close()
    components = ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())
    show("end", f"{played.stop_reason}, reward {played.reward:g}" + (f" ({components})" if components else ""))


def new_env_command(
    name: Annotated[str, typer.Argument(help="WordGame or word_game.")],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path(),
) -> None:
    """Write a small environment and its test, to be changed into your own."""
    from rich.console import Console

    from turntree.agents.new_env import write_env

    written = write_env(name, out)
    module = written.environment.stem
    Console().print(
        f"wrote {written.environment} and {written.test}; in that folder run\n"
        f"  python -m pytest {written.test.name}\n"
        f"  turntree check {module}:{written.id}\n"
        f"  turntree play {module}:{written.id}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def env_arguments(pairs: Sequence[str], *, data: str | None = None, tool_format: str | None = None) -> dict[str, Any]:
    """The arguments of an environment that the words of a command say.

    Args:
        pairs: ``KEY=VALUE``; values are JSON where they can be.
        data: Argument ``data``, if any.
        tool_format: Argument ``tool_format``, if any.

    Raises:
        UsageError: If a pair is none.
    """
    from turntree.agents.errors import UsageError

    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--env-arg takes KEY=VALUE, for example max_numbers=3; got {pair!r}")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    given = {"data": data, "tool_format": tool_format}
    return arguments | {key: value for key, value in given.items() if value is not None}


def env_maker(env_id: str, arguments: Mapping[str, Any]) -> functools.partial[Env]:
    """Makes an environment.

    Args:
        env_id: Registered id, or ``MODULE:ID`` to import a module first.
        arguments: Of the environment.
    """
    from turntree.envs import make

    return functools.partial(make, env_id, **arguments)


def checked_env(make_env: functools.partial[Env], env_id: str) -> Env:
    """Make the environment.

    Raises:
        UsageError: If it does not take the arguments, or its module is not there.
    """
    from turntree.agents.errors import UsageError

    try:
        return make_env()
    except ModuleNotFoundError as error:
        if error.name != env_id.partition(":")[0]:
            raise
        raise UsageError(f"there is no module {error.name!r} in this folder or among the installed ones") from error
    except TypeError as error:
        # Gymnasium appends where the error came from, with all arguments once more.
        reason = str(error).partition(" was raised from")[0]
        raise UsageError(f"{env_id} does not take these arguments: {reason}") from error
