from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turntree.agents.commands.options import (
    EnvArgOption,
    JsonOption,
    ModelOption,
    TemplateOption,
    ToolFormatOption,
    takes,
)

if TYPE_CHECKING:
    from turntree.agents.sft.demonstrations import Demonstrations, Source


class ExportKind(StrEnum):
    TRACE = "trace"
    MESSAGES = "messages"
    TOKENS = "tokens"


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


def export_command(
    run: Annotated[
        Path, typer.Argument(help="Run folder, folder of recorded sessions, or episode file (eval's --out).")
    ],
    to: Annotated[
        ExportKind,
        typer.Option(help="messages: one row per dialogue, OpenAI format; tokens: with mask; trace: to test drafters."),
    ] = ExportKind.TRACE,
    format: Annotated[ExportFormat, typer.Option(help="File format of messages and tokens; a trace is .npz.")] = (
        ExportFormat.JSONL
    ),
    out: Annotated[
        Path | None, typer.Option(help="Output file; default: messages.jsonl, trace.npz, ... in the run folder.")
    ] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Vocabulary size of the policy, for a trace.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps, from the first.")] = None,
) -> None:
    """Export the episodes of a run as messages, as tokens, or as a trace of all epochs.

    Example: turntree export runs/demo --to messages --format parquet
    """
    from rich.console import Console

    from turntree.agents.episodes.exported import export_rows
    from turntree.agents.episodes.record import episode_files
    from turntree.agents.errors import UsageError
    from turntree.agents.files import keep_apart
    from turntree.agents.viewer.trace_export import export_trace

    target = out or _default_target(run, to, format)
    keep_apart(target, episode_files(run))
    if to is not ExportKind.TRACE:
        if vocab is not None:
            raise UsageError("--vocab is only for --to trace; leave it out")
        rows = export_rows(
            run, target, tokens=to is ExportKind.TOKENS, parquet=format is ExportFormat.PARQUET, steps=steps
        )
        summary = f"{rows.rows} rows from {rows.episodes} episodes, {rows.unscored} of them without a reward"
        if rows.without_tokens:
            summary += f", {rows.without_tokens} left out because only their text is known"
    else:
        exported = export_trace(run, vocab=vocab, steps=steps)
        trace = exported.trace
        trace.save(target)
        summary = (
            f"{exported.episodes} episodes of {len(trace.prompt_offsets) - 1} states in "
            f"{int(trace.epoch.max()) + 1} epochs, {int(trace.mask.sum())} sampled tokens "
            f"({exported.left_out} episodes left out)"
        )
    size = f"{target.stat().st_size / 1e6:.2f} MB"
    Console().print(f"wrote {target}: {summary}, {size}", highlight=False, markup=False, soft_wrap=True)


def _default_target(run: Path, to: ExportKind, format: ExportFormat) -> Path:
    if to is ExportKind.TRACE:
        return run.with_suffix(".npz") if run.is_file() else run / "trace.npz"
    return run.with_suffix(f".{to}.{format}") if run.is_file() else run / f"{to}.{format}"


@dataclass(frozen=True, kw_only=True)
class SftOptions:
    what: Annotated[str, typer.Argument(metavar="ENV_ID", help="Environment from `turntree list`, or MODULE:NAME.")]
    model: ModelOption = None
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder of the model; must be new or empty.")]
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Train on recorded episodes: run folder, or eval's --out."),
    ] = None
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help='Train on a JSONL file of {"messages": [...], "tools": [...]}.')
    ] = None
    above: Annotated[float, typer.Option(help="Use only episodes with a reward above this.")] = 0.0
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks whose solution() is played; default: at most 100.")
    ] = None
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the demonstrations.")] = 1.0
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps; overrides --epochs.")] = None
    lr: Annotated[float, typer.Option(min=0.0, help="Peak learning rate; use 1e-5 from about 1B parameters.")] = 2e-4
    batch_size: Annotated[int, typer.Option(min=1, help="Demonstrations per step.")] = 8
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0
    device: Annotated[str | None, typer.Option(help="Torch device; default: a GPU if available.")] = None
    tool_format: ToolFormatOption = None
    env_arg: EnvArgOption = None
    template: TemplateOption = None
    as_json: JsonOption = False


@takes(SftOptions)
def sft_command(options: SftOptions) -> None:
    """Fine-tune a model on demonstrations before reinforcement learning.

    Demonstrations are the turns of the environment's solution(), unless --from or --data names others.

    Example: turntree sft shop:Shop --model DIR --out DIR/sft

    Example: turntree sft shop:Shop --model DIR --out DIR/sft --from runs/shop --above 0.5
    """
    import json

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from turntree.agents.progress import bar_columns, show_progress
    from turntree.agents.sft.run import SftSettings, check_out, fine_tune

    check_out(options.out)
    source, tokenizer, model = _source(options)
    names = ("epochs", "steps", "lr", "batch_size", "seed", "device")
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), *bar_columns(errors), MofNCompleteColumn(), TimeElapsedColumn())
    with show_progress(Progress(*columns, console=errors, transient=True)) as progress:
        bar = progress.add_task("playing demonstrations", total=None)
        found = _demonstrations(options, source, lambda count: progress.update(bar, completed=count))
        errors.print(found.summary(), highlight=False, markup=False, soft_wrap=True)
        figures = fine_tune(
            model,
            tokenizer,
            found,
            options.out,
            SftSettings(**{name: getattr(options, name) for name in names}),
            source=str(options.run or options.data or f"{options.what}: solution()"),
            on_step=lambda step, steps, loss: progress.update(
                bar, completed=step, total=steps, description=f"training, loss {loss:.3f}"
            ),
        )
    if options.as_json:
        Console().print_json(json.dumps(figures))
        return
    typer.echo(
        f"wrote {options.out}: {figures['steps']} steps on {figures['trained_tokens']} tokens of the policy, "
        f"loss {figures['loss_first']:.3f} -> {figures['loss_last']:.3f}, {figures['seconds']:.0f} s"
    )


def _source(options: SftOptions) -> tuple[Source, Any, str]:
    # Options that exclude each other are refused before anything is loaded.
    from turntree.agents.commands.options import PolicyOptions, named_model
    from turntree.agents.errors import UsageError
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.evaluation.environments import checked_env, env_arguments, env_maker
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.sft.demonstrations import Source

    if options.run is not None and options.data is not None:
        raise UsageError("expected --from or --data, got both")
    if options.tasks is not None and (options.run or options.data):
        raise UsageError("--tasks is the number of solution() tasks; leave it out with --from or --data")
    make_env = env_maker(options.what, env_arguments(options.env_arg or (), tool_format=options.tool_format))
    checked_env(make_env, options.what).close()
    checkpoint = Checkpoint.open(named_model(None, options.model).path)
    rendering = PolicyOptions(template=options.template).renderer_options()
    source = Source(
        make_env=make_env,
        renderer=Renderer(checkpoint.tokenizer, **rendering),
        positions=checkpoint.max_positions,
        above=options.above,
    )
    return source, checkpoint.tokenizer, checkpoint.name


def _demonstrations(options: SftOptions, source: Source, on_episode: Any) -> Demonstrations:
    if options.run is not None:
        return source.recorded(options.run)
    if options.data is not None:
        return source.messages(options.data)
    return source.solutions(options.tasks, on_episode=on_episode)
