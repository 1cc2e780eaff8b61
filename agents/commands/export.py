"""``turntree export``: a recorded run as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a file of episodes.")],
    out: Annotated[Path | None, typer.Option(help="File to write; trace.npz in the run's folder without it.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Number of token ids of the policy.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Only the first so many training steps.")] = None,
) -> None:
    """Write the rollouts of a run, epoch after epoch, as one trace to measure drafters on."""
    from rich.console import Console

    from turntree.agents.episodes.record import episode_files
    from turntree.agents.files import keep_apart
    from turntree.agents.viewer.trace_export import export_trace

    target = out or (run.with_suffix(".npz") if run.is_file() else run / "trace.npz")
    keep_apart(target, episode_files(run))
    exported = export_trace(run, vocab=vocab, steps=steps)
    exported.trace.save(target)
    trace = exported.trace
    Console().print(
        f"wrote {target}: {exported.episodes} episodes of {len(trace.prompt_offsets) - 1} states in "
        f"{int(trace.epoch.max()) + 1} epochs, {int(trace.mask.sum())} sampled tokens "
        f"({exported.left_out} episodes left out), {target.stat().st_size / 1e6:.2f} MB",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
