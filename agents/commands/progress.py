"""The bar of episodes that a command shows while it plays."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """Episodes a minute, of late."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{60 * task.speed:.1f}/min")


def episode_progress(console: Console, get_time: Callable[[], float] = monotonic) -> Progress:
    """Bars with the episodes played and to be played, their rate, the time gone and the time left.

    Args:
        console: Where the bars are drawn; on what is no terminal they are not.
        get_time: A clock, seconds.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        get_time=get_time,
    )
