"""What a command shows of long work: bars on a terminal, elsewhere a line at least twice a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
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

SILENCE = 25.0
"""Most seconds without a line where no bar is drawn."""
_SHOWN = Event()
"""Set as a progress is shown, which speaks from then on."""
_WIDE = 160
"""Characters of such a line, whatever the width of a terminal that is not there."""


@contextmanager
def speaking(words: str, *, seconds: float = SILENCE) -> Iterator[None]:
    """Write a line as the time passes, until a progress is shown or the block ends; none on a terminal.

    Args:
        words: What goes on before there is a progress: imports and checks take long on a busy machine.
        seconds: Time between two lines.
    """
    _SHOWN.clear()
    began = monotonic()

    def speak() -> None:
        while not _SHOWN.wait(seconds):
            sys.stderr.write(f"{words}, {monotonic() - began:.0f} s\n")

    participant = Thread(target=speak, daemon=True)
    if not sys.stderr.isatty():
        participant.start()
    try:
        yield
    finally:
        _SHOWN.set()


@contextmanager
def shown(progress: Progress, *, seconds: float = SILENCE) -> Iterator[Progress]:
    """Show a progress as long as the block runs.

    Args:
        progress: Its bars are drawn on a terminal. Elsewhere a line of each bar that is not full is printed as the time
            passes.
        seconds: Time between two lines.
    """
    _SHOWN.set()
    ended = Event()
    wide = Console(file=progress.console.file, width=_WIDE)

    def speak() -> None:
        while not ended.wait(seconds):
            going = [task for task in progress.tasks if not task.finished]
            wide.print(progress.make_tasks_table(going))

    participant = Thread(target=speak, daemon=True)
    with progress:
        if not progress.console.is_terminal:
            participant.start()
        try:
            yield progress
        finally:
            ended.set()
            if participant.is_alive():
                participant.join()


def bar_columns(console: Console) -> tuple[ProgressColumn, ...]:
    """The bar itself, where it can be drawn anew."""
    return (BarColumn(),) if console.is_terminal else ()


class _Rate(ProgressColumn):
    """Episodes a minute, of late."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{60 * task.speed:.1f}/min")


def episode_progress(console: Console, get_time: Callable[[], float] = monotonic) -> Progress:
    """Bars with the episodes played and to be played, their rate, the time gone and the time left.

    Args:
        get_time: A clock, seconds.
    """
    return Progress(
        TextColumn("{task.description}"),
        *bar_columns(console),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        get_time=get_time,
    )
