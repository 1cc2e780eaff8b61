"""The sub-commands of ``turntree``; engines, verl and the demo are imported by the one that needs them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from turntree.agents.checkpoint import Checkpoint
from turntree.agents.engines.protocol import Sampling
from turntree.agents.env_commands import check_command, checked_env, env_maker, new_env_command, play_command
from turntree.agents.episode import Episode
from turntree.agents.errors import MissingExtra
from turntree.agents.evaluate import Evaluation, evaluate
from turntree.agents.record import EpisodeWriter
from turntree.agents.renderer import Renderer
from turntree.agents.reward_commands import ContractOption, RewardOption, parse_rewards, rescore_command, score_command
from turntree.agents.scorer import Scorer
from turntree.envs import list_envs
from turntree.envs.catalogue import find_entry

if TYPE_CHECKING:
    from turntree.agents.engines.local import LocalEngine
    from turntree.agents.verl.launch import StepReport

_CONTEXT = 1024
"""Tokens of prompt and response, unless the model has fewer positions or the user says otherwise."""

app = typer.Typer(
    help="Train language-model agents with reinforcement learning in multi-turn environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


app.command("check")(check_command)
app.command("play")(play_command)
_new = typer.Typer(help="Write the beginnings of something of your own.", no_args_is_help=True)
_new.command("env")(new_env_command)
_new.callback()(lambda: None)
app.add_typer(_new, name="new")


class EngineName(StrEnum):
    """Engines that ``eval`` can start."""

    LOCAL = "local"
    """PyTorch in this process."""


@app.callback()
def configure(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False) -> None:
    """Set the log level and find modules of the working folder; the sub-commands do the work."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does, for MODULE:ID
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR)


@app.command("list")
def list_environments() -> None:
    """List the environments that can be made."""
    table = Table("environment", "what it is", box=None)
    for env_id in list_envs():
        table.add_row(env_id, _summary(env_id))
    Console().print(table)


@app.command("eval")
def evaluate_model(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="An environment of `turntree list`.")],
    model: Annotated[str, typer.Option(help="Model directory, or its id on the Hugging Face hub.")],
    engine: Annotated[EngineName, typer.Option(help="What runs the model.")] = EngineName.LOCAL,
    data: Annotated[str | None, typer.Option(help="Tasks: JSONL, Parquet or a data set id.")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Tasks, from the first.")] = 20,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    reward: RewardOption = None,
    contract: ContractOption = None,
    tool_format: Annotated[str | None, typer.Option(help="hermes or compact.")] = None,
    env_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the environment; repeatable.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one turn.")] = 256,
    max_context: Annotated[
        int | None, typer.Option(min=1, help=f"Tokens of an episode; {_CONTEXT} if the model has as many.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    speculate: Annotated[bool, typer.Option(help="Draft turns from earlier ones.")] = True,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of weights and activations.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of tasks and sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the episodes here, as JSON lines.")] = None,
) -> None:
    """Play tasks with a model and print how it did."""
    scorer = Scorer(parse_rewards(reward), contract=contract) if reward else None
    make_env = env_maker(env_id, data=data, tool_format=tool_format, pairs=env_arg or ())
    env = checked_env(make_env, env_id)
    count = count if env.num_tasks is None else min(count, env.num_tasks)
    checkpoint = Checkpoint.open(model)
    context = max_context or min(_CONTEXT, checkpoint.max_positions or _CONTEXT)
    limits = replace(env.limits, max_turn_tokens=max_tokens, max_context_tokens=context)
    renderer = Renderer(checkpoint.tokenizer)
    if out is not None:
        out.unlink(missing_ok=True)
    writer = EpisodeWriter(out) if out is not None else None
    local = _open_local(model, min(concurrency, count * samples), context, speculate, device, dtype)
    started = perf_counter()
    try:
        with _progress() as progress:
            bar = progress.add_task(env_id, total=count * samples)

            def note(episode: Episode) -> None:
                progress.advance(bar)
                if writer is not None:
                    writer.write(episode)

            episodes = asyncio.run(
                evaluate(
                    make_env,
                    local,
                    renderer,
                    range(count),
                    limits=limits,
                    sampling=Sampling(temperature=temperature),
                    seed=seed,
                    concurrency=concurrency,
                    samples=samples,
                    scorer=scorer,
                    on_episode=note,
                )
            )
    finally:
        local.close()
        if writer is not None:
            writer.close()
    _print_evaluation(env_id, model, episodes, perf_counter() - started)
    if all(episode.masked for episode in episodes):
        raise typer.Exit(1)


app.command("score")(score_command)
app.command("rescore")(rescore_command)


@app.command("train")
def train_policy(
    config: Annotated[str, typer.Argument(help="A configuration of turntree.configs, or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
) -> None:
    """Train a policy with verl."""
    from turntree.agents.verl.launch import train

    raise typer.Exit(train(config, overrides or [], on_step=_print_step))


@app.command("demo")
def run_demo(
    model: Annotated[str | None, typer.Option(help="A real model; without one a tiny one is made.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Of warm start, tasks and sampling.")] = 0,
) -> None:
    """Train an agent on the CPU and show what speculation did."""
    from turntree.agents.demo.run import main

    raise typer.Exit(main(model=model, steps=steps, out=out, seed=seed))


def _summary(env_id: str) -> str:
    """The catalogue's line about the environment, else the first of its docstring."""
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


def _open_local(model: str, batch: int, context: int, speculate: bool, device: str, dtype: str) -> LocalEngine:
    try:
        from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("turntree"):
            raise
        raise MissingExtra("the local engine", "local") from error
    config = LocalEngineConfig(
        max_batch=batch,
        max_context=context,
        dtype=dtype,
        device=device,
        speculation=Speculation() if speculate else None,
    )
    return LocalEngine.from_pretrained(model, config=config)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _print_evaluation(env_id: str, model: str, episodes: list[Episode], seconds: float) -> None:
    result = Evaluation.of(episodes)
    cached = result.cached_tokens / result.prompt_tokens if result.prompt_tokens else 0.0
    table = Table("", "", title=f"{env_id}, {model}", show_header=False)
    rows = {
        "accuracy": f"{result.accuracy:.3f} ({result.solved} of {result.scored})",
        "95 % interval": f"{result.interval.low:.3f} to {result.interval.high:.3f}",
        "reward per episode": f"{result.per_episode(result.reward):.3f}",
        "turns per episode": f"{result.per_episode(result.turns):.2f}",
        "tokens per episode": f"{result.per_episode(result.tokens):.1f}",
        "tokens per verify step": f"{result.tokens_per_step:.2f}",
        "cached prompt tokens": f"{result.cached_tokens} of {result.prompt_tokens} ({cached:.0%})",
        "failures (left out)": str(result.failures),
        "undecided (left out)": str(result.undecided),
        "ended by": ", ".join(f"{reason} {count}" for reason, count in result.stop_reasons.items()),
        "seconds": f"{seconds:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console = Console()
    console.print(table)
    failure = next((episode.failure for episode in episodes if episode.failure), None)
    if failure is not None:
        console.print(f"first failure: {failure}", markup=False, highlight=False)


def _print_step(report: StepReport) -> None:
    Console().print(
        f"step {report.step}: reward {report.reward:.3f}, "
        f"{report.tokens_per_step:.2f} tokens per verify step, {report.seconds:.1f} s",
        highlight=False,
    )
