"""Play the policies of an evaluation one after the other, with a progress bar for each evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from turntree.agents.commands.options import NamedModel

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.evaluation.evaluate import Playing
    from turntree.agents.evaluation.file import EvalFile
    from turntree.agents.evaluation.run import Planned
    from turntree.agents.evaluation.table import EvalResult
    from turntree.agents.loop.renderer import Renderer

TurnDrafts = Sequence[Mapping[int, Sequence[int]] | None]


class Policy(NamedTuple):
    model: NamedModel
    planned: Sequence[Planned]
    choice: EngineChoice
    renderer: Renderer | None  #: None for a chat server
    files: Sequence[Path | None]  #: episode file of each evaluation


def play_policy(
    policy: Policy, playing: Playing, by: Mapping[str, Any], turn_drafts: TurnDrafts, *, restart: bool
) -> list[EvalResult]:
    """Play the remaining episodes; after Ctrl-C, print where the evaluation stopped.

    Args:
        by: What the episodes depend on besides the tasks and the model.
        turn_drafts: For each evaluation, seed -> token ids of another policy's turns.
    """
    import asyncio

    own = {"checkpoint": policy.model.checkpoint} if policy.model.checkpoint else {}
    try:
        return asyncio.run(_play_all(policy, playing, {**by, **own}, turn_drafts, restart))
    except KeyboardInterrupt:
        typer.echo(_where_it_stopped(policy), err=True)
        raise


async def _play_all(
    policy: Policy, playing: Playing, by: Mapping[str, Any], turn_drafts: TurnDrafts, restart: bool
) -> list[EvalResult]:
    # Files are opened before the engine, which is not started if nothing is left to play.
    from dataclasses import replace

    from rich.console import Console

    from turntree.agents.engines.engine_choice import open_policy
    from turntree.agents.evaluation.run import finished, play
    from turntree.agents.progress import episode_progress, show_progress

    planned, choice = policy.planned, policy.choice
    async with AsyncExitStack() as stack:
        model, engine = policy.model.name, None
        # A chat server states which model it serves.
        if not model:
            engine = await stack.enter_async_context(open_policy(choice))
            model = getattr(engine, "model", "")
        playing = replace(playing, model=model)
        opened = _opened(policy, playing, by, restart=restart)
        for file in filter(None, opened):
            stack.callback(file.close)
        done = [finished(one, file, model=model) for one, file in zip(planned, opened, strict=True)]
        if (results := [result for result in done if result is not None]) and len(results) == len(planned):
            count = sum(len(result.episodes) for result in results)
            typer.echo(f"all {count} episodes are finished already; no model is loaded", err=True)
            return results
        progress = stack.enter_context(show_progress(episode_progress(Console(stderr=True))))
        starting = progress.add_task(f"starting the engine {choice.name}", total=None)
        if engine is None:
            engine = await stack.enter_async_context(open_policy(choice))
        progress.remove_task(starting)
        return [
            await play(
                one,
                engine,
                policy.renderer,
                playing,
                file=file,
                turn_drafts=drafts,
                on_episode=partial(_advance, progress, progress.add_task(one.task.title, total=one.episodes)),
            )
            for one, file, drafts in zip(planned, opened, turn_drafts, strict=True)
        ]


def _opened(policy: Policy, playing: Playing, by: Mapping[str, Any], *, restart: bool) -> list[EvalFile | None]:
    from turntree.agents.evaluation.run import open_file

    return [
        None if file is None else open_file(one, file, playing, restart=restart, played_by=by)
        for one, file in zip(policy.planned, policy.files, strict=True)
    ]


def _advance(progress: Progress, bar: TaskID, count: int) -> None:
    progress.update(bar, completed=count)


def _where_it_stopped(policy: Policy) -> str:
    done = [
        (one, file, _lines(file)) for one, file in zip(policy.planned, policy.files, strict=True) if file is not None
    ]
    if not done:
        return "interrupted: without --out no episode was saved"
    counts = ", ".join(f"{lines} of {one.episodes} episodes in {file}" for one, file, lines in done)
    return f"interrupted: {counts}; run the same command again to resume"


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
