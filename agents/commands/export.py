from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turntree.agents.commands.options import EnvArgOption, ModelOption, TemplateOption, ToolFormatOption, takes

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
        Path, typer.Argument(help="Folder of a run or of recorded sessions, or a file of episodes (eval's --out).")
    ],
    to: Annotated[
        ExportKind,
        typer.Option(help="messages: OpenAI's, a row a dialogue; tokens: with mask; trace: to measure drafters on."),
    ] = ExportKind.TRACE,
    format: Annotated[ExportFormat, typer.Option(help="Of messages and tokens; a trace is .npz.")] = ExportFormat.JSONL,
    out: Annotated[
        Path | None, typer.Option(help="File to write; messages.jsonl, trace.npz, ... in the run's folder without it.")
    ] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Of a trace: number of token ids of the policy.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Only the first so many training steps.")] = None,
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

    suffix = ".npz" if to is ExportKind.TRACE else f".{format}"
    name = f"{run.stem}.{to}{suffix}" if to is not ExportKind.TRACE else f"{run.stem}.npz"
    target = out or (run.with_name(name) if run.is_file() else run / f"{to}{suffix}")
    keep_apart(target, episode_files(run))
    if to is not ExportKind.TRACE:
        if vocab is not None:
            raise UsageError("--vocab belongs to a trace; leave it out with --to messages or tokens")
        rows = export_rows(
            run, target, tokens=to is ExportKind.TOKENS, parquet=format is ExportFormat.PARQUET, steps=steps
        )
        said = f"{rows.rows} rows of {rows.episodes} episodes, {rows.unscored} of them without a reward"
        if rows.without_tokens:
            said += f", {rows.without_tokens} left out, of which only the text is known"
    else:
        exported = export_trace(run, vocab=vocab, steps=steps)
        trace = exported.trace
        trace.save(target)
        said = (
            f"{exported.episodes} episodes of {len(trace.prompt_offsets) - 1} states in "
            f"{int(trace.epoch.max()) + 1} epochs, {int(trace.mask.sum())} sampled tokens "
            f"({exported.left_out} episodes left out)"
        )
    size = f"{target.stat().st_size / 1e6:.2f} MB"
    Console().print(f"wrote {target}: {said}, {size}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class SftOptions:
    what: Annotated[str, typer.Argument(metavar="ENV_ID", help="An environment of `turntree list`, or MODULE:NAME.")]
    model: ModelOption = None
    out: Annotated[Path, typer.Option(metavar="DIR", help="Model folder to write; must be new or empty.")]
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Train on recorded episodes: a run's folder, or eval's --out."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Train on dialogues in JSONL: {"messages": [...], "tools": [...]}.'),
    ] = None
    above: Annotated[float, typer.Option(help="Use only episodes with a reward above this bound.")] = 0.0
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks whose solution() is played, from the first; 100, or all if fewer."),
    ] = None
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the demonstrations.")] = 1.0
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps, instead of --epochs.")] = None
    lr: Annotated[float, typer.Option(min=0.0, help="Peak learning rate; take 1e-5 from about 1B parameters on.")] = (
        2e-4
    )
    batch_size: Annotated[int, typer.Option(min=1, help="Demonstrations per step.")] = 8
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0
    device: Annotated[str | None, typer.Option(help="Torch device; a GPU if there is one.")] = None
    tool_format: ToolFormatOption = None
    env_arg: EnvArgOption = None
    template: TemplateOption = None
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False


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

    from turntree.agents.progress import bar_columns, shown
    from turntree.agents.sft.run import SftSettings, check_out, fine_tune

    check_out(options.out)
    source, tokenizer, model = _source(options)
    names = ("epochs", "steps", "lr", "batch_size", "seed", "device")
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), *bar_columns(errors), MofNCompleteColumn(), TimeElapsedColumn())
    with shown(Progress(*columns, console=errors, transient=True)) as progress:
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
        raise UsageError("--from and --data are both given; demonstrations come from one of them")
    if options.tasks is not None and (options.run or options.data):
        raise UsageError("--tasks counts the tasks whose solution() is played; leave it out with --from or --data")
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
