"""Progress of long commands: bars on a terminal, otherwise a line at least twice a minute."""

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

SILENCE = 25.0  #: seconds between two lines when no bar is drawn
_SHOWN = Event()  #: set once a progress bar is shown; from then on the bar prints the lines
_WIDE = 160  #: characters per line when stderr is not a terminal


@contextmanager
def startup_messages(words: str, *, seconds: float = SILENCE) -> Iterator[None]:
    """Print a line at intervals until a progress bar is shown or the block ends; on a terminal, print nothing.

    Args:
        words: Text of the line. Imports and checks take long on a busy machine.
        seconds: Time between two lines.
    """
    _SHOWN.clear()
    start = monotonic()

    def print_lines() -> None:
        while not _SHOWN.wait(seconds):
            sys.stderr.write(f"{words}, {monotonic() - start:.0f} s\n")

    printer = Thread(target=print_lines, daemon=True)
    if not sys.stderr.isatty():
        printer.start()
    try:
        yield
    finally:
        _SHOWN.set()


@contextmanager
def show_progress(progress: Progress, *, seconds: float = SILENCE) -> Iterator[Progress]:
    """Show a progress while the block runs.

    Args:
        progress: Drawn as bars on a terminal. Elsewhere each unfinished bar is printed as a line at intervals.
        seconds: Time between two lines.
    """
    _SHOWN.set()
    ended = Event()
    wide = Console(file=progress.console.file, width=_WIDE)

    def print_lines() -> None:
        while not ended.wait(seconds):
            unfinished = [task for task in progress.tasks if not task.finished]
            wide.print(progress.make_tasks_table(unfinished))

    printer = Thread(target=print_lines, daemon=True)
    with progress:
        if not progress.console.is_terminal:
            printer.start()
        try:
            yield progress
        finally:
            ended.set()
            if printer.is_alive():
                printer.join()


def bar_columns(console: Console) -> tuple[ProgressColumn, ...]:
    return (BarColumn(),) if console.is_terminal else ()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{60 * task.speed:.1f}/min")


def episode_progress(console: Console, get_time: Callable[[], float] = monotonic) -> Progress:
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
