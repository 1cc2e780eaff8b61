from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from turntree.agents.commands.options import (
    DataOption,
    EnvArgOption,
    JsonOption,
    ModelOption,
    PolicyOptions,
    TemplateOption,
    ToolFormatOption,
    takes,
)

EnvId = Annotated[str, typer.Argument(metavar="ENV_ID", help="Environment from `turntree list`, or MODULE:NAME.")]


def check_command(
    env_id: EnvId,
    data: DataOption = None,
    env_arg: EnvArgOption = None,
    turn: Annotated[
        list[str] | None, typer.Option(help="Scripted turn to play; repeatable. Default: calls of the tools.")
    ] = None,
    attack: Annotated[bool, typer.Option("--attack", help="Also run `turntree attack`.")] = False,
    model: ModelOption = None,
    template: TemplateOption = None,
) -> None:
    """Check that an environment follows the rules: seeds, snapshots, infos, episode ends.

    With --model, also print the first prompt as the model receives it, and check that it names each tool and shows the
    format of a call.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from turntree.agents.evaluation.attack import report_attack
    from turntree.agents.evaluation.environments import checked_env, env_arguments, env_maker
    from turntree.envs import check_environment

    make_env = env_maker(env_id, env_arguments(env_arg or (), data=data))
    env = checked_env(make_env, env_id)
    findings = check_environment(make_env, turn)
    table = Table("", "rule", "problem", box=None)
    for finding in findings:
        table.add_row("ok" if finding.passed else "FAILED", finding.check, Text(finding.problem))
    Console().print(table)
    described = model is None or _show_prompt(env, model, template)
    sound = not attack or report_attack(env)
    if not described or not sound or not all(finding.passed for finding in findings):
        raise typer.Exit(1)


def _show_prompt(env: Any, model: str, variables: str | None) -> bool:
    # Returns whether the prompt describes every tool and the call format.
    from rich.console import Console

    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.loop.tool_format import follow_template, opening, untold

    renderer = Renderer(Checkpoint.open(model).tokenizer, **PolicyOptions(template=variables).renderer_options())
    follow_template(env, renderer)
    _, info = env.reset(seed=0)
    prompt = renderer.decode(opening(env, renderer, info["messages"], info["tools"]), special_tokens=True)
    console = Console()
    console.print("\nFirst prompt:", style="bold")
    console.print(prompt, markup=False, highlight=False, soft_wrap=True)
    problems = untold(env, renderer, prompt, info["tools"])
    for problem in problems:
        advice = (
            "describe it in the system prompt, or drop describes_tools"
            if env.unwrapped.describes_tools
            else "set tool_format to the format that the model's chat template shows"
        )
        console.print(f"FAILED: {problem}; {advice}", markup=False, highlight=False, soft_wrap=True)
    return not problems


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    env_id: EnvId
    data: DataOption = None
    env_arg: EnvArgOption = None
    count: Annotated[int, typer.Option("-n", min=1, help="Number of tasks, spread evenly.")] = 250
    bound: Annotated[
        float, typer.Option(min=0, max=1, help="Allowed fraction of tasks with undeserved or refused rewards.")
    ] = 0.004
    luck: Annotated[float, typer.Option(min=0, max=1, help="Allowed fraction of lucky random answers.")] = 0.5
    above: Annotated[float, typer.Option(help="Total reward above which an episode counts as paid.")] = 0.0
    out: Annotated[Path | None, typer.Option(help="JSON file for the full report, including all turns.")] = None
    as_json: JsonOption = False


@takes(AttackOptions)
def attack_command(options: AttackOptions) -> None:
    """Attack an environment: find rewards without a solution, and refused solutions.

    Scripted policies stay silent, refuse, plead, guess, copy, hide a right answer among others, or change a solution
    slightly. Exit status 1: more tasks than --bound pay such a policy, or refuse a right answer.
    """
    from turntree.agents.evaluation.attack import report_attack
    from turntree.agents.evaluation.environments import checked_env, env_arguments, env_maker
    from turntree.agents.files import ensure_writable, keep_apart

    arguments = env_arguments(options.env_arg or (), data=options.data)
    if options.out is not None:
        keep_apart(options.out, [arguments])
        ensure_writable(options.out)
    env = checked_env(env_maker(options.env_id, arguments), options.env_id)
    how = {name: getattr(options, name) for name in ("count", "bound", "luck", "above", "out", "as_json")}
    try:
        sound = report_attack(env, **how)
    finally:
        env.close()
    if not sound:
        raise typer.Exit(1)


def play_command(
    env_id: EnvId,
    data: DataOption = None,
    index: Annotated[int | None, typer.Option(min=0, help="Task index; default: a random task.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random task and the environment.")] = None,
    tool_format: ToolFormatOption = None,
    env_arg: EnvArgOption = None,
) -> None:
    """Play an environment yourself in the terminal."""
    from rich.console import Console
    from rich.text import Text

    from turntree.agents.commands.play import play
    from turntree.agents.evaluation.environments import checked_env, env_arguments, env_maker

    make_env = env_maker(env_id, env_arguments(env_arg or (), data=data, tool_format=tool_format))
    env = checked_env(make_env, env_id)
    console = Console()

    def show(who: str, text: str) -> None:
        console.print(Text.assemble((who, "bold"), "  ", text))

    # Enables arrow keys in input(); missing on some systems.
    with suppress(ImportError):
        importlib.import_module("readline")

    def ask() -> str:
        line = input("> ") + "\n" if sys.stdin.isatty() else sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    try:
        played = play(env, ask, show, seed=seed, options=None if index is None else {"index": index})
    finally:
        env.close()
    components = ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())
    show("end", f"{played.stop_reason}, reward {played.reward:g}" + (f" ({components})" if components else ""))


def new_env_command(
    name: Annotated[str, typer.Argument(help="Name, for example WordGame or word_game.")],
    out: Annotated[Path, typer.Option(help="Folder of the two files.")] = Path(),
) -> None:
    """Write a small environment and its test as a starting point."""
    from rich.console import Console

    from turntree.agents.commands.new_env import write_env

    written = write_env(name, out)
    module = written.environment.stem
    Console().print(
        f"wrote {written.environment} and {written.test}; next, run in that folder:\n"
        f"  python -m pytest {written.test.name}\n"
        f"  turntree check {module}:{written.id}\n"
        f"  turntree play {module}:{written.id}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
