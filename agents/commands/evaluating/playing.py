"""Play the policies of an evaluation one after the other, with a progress bar for each evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from turntree.agents.commands.options import NamedModel

if TYPE_CHECKING:
    from rich.progress import Progress

    from turntree.agents.engines.engine_choice import EngineChoice
    from turntree.agents.evaluation.evaluate import Playing
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
    from turntree.agents.evaluation.run import finished, open_file, play
    from turntree.agents.progress import episode_progress, show_progress

    planned, choice = policy.planned, policy.choice
    async with AsyncExitStack() as stack:
        model, engine = policy.model.name, None
        # A chat server states which model it serves.
        if not model:
            engine = await stack.enter_async_context(open_policy(choice))
            model = getattr(engine, "model", "")
        playing = replace(playing, model=model)
        opened = [
            None if file is None else open_file(task_plan, file, playing, restart=restart, played_by=by)
            for task_plan, file in zip(planned, policy.files, strict=True)
        ]
        for file in filter(None, opened):
            stack.callback(file.close)
        done = [finished(task_plan, file, model=model) for task_plan, file in zip(planned, opened, strict=True)]
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
                task_plan,
                engine,
                policy.renderer,
                playing,
                file=file,
                turn_drafts=drafts,
                on_episode=_bar(progress, task_plan),
            )
            for task_plan, file, drafts in zip(planned, opened, turn_drafts, strict=True)
        ]


def _bar(progress: Progress, planned: Planned) -> Callable[[int], None]:
    bar = progress.add_task(planned.task.title, total=planned.episodes)
    return lambda count: progress.update(bar, completed=count)


def _where_it_stopped(policy: Policy) -> str:
    counts = []
    for task_plan, file in zip(policy.planned, policy.files, strict=True):
        if file is not None:
            lines = file.read_bytes().count(b"\n") if file.exists() else 0
            counts.append(f"{lines} of {task_plan.episodes} episodes in {file}")
    if not counts:
        return "interrupted: without --out no episode was saved"
    return f"interrupted: {', '.join(counts)}; run the same command again to resume"
