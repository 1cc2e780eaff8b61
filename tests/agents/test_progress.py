import io
import time

import pytest
from rich.console import Console

from turntree.agents.progress import episode_progress, show_progress, startup_messages


def bar_after(*minutes: float) -> str:
    seconds = [0.0]
    console = Console(file=io.StringIO(), width=120)
    progress = episode_progress(console, lambda: seconds[-1])
    bar = progress.add_task("sums", total=8)
    for number, minute in enumerate(minutes, start=1):
        seconds.append(60 * minute)
        progress.update(bar, completed=2 * number)
    with console.capture() as captured:
        console.print(progress.get_renderable())
    return captured.get()


def test_the_bar_has_a_rate_and_the_time_left_once_two_episodes_have_ended() -> None:
    bar = bar_after(0.1, 0.2, 0.3)
    assert "sums" in bar
    assert "6/8" in bar
    assert "20.0/min" in bar
    assert bar.split("left")[1].split()[0] == "0:00:06"
    bar = bar_after()
    assert "0/8" in bar
    assert "/min" not in bar
    assert "-:--:--" in bar


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_terminal_a_line_reports_progress_at_intervals(terminal: bool) -> None:
    # Control: no lines on a terminal, where bars are drawn.
    console = Console(file=io.StringIO(), width=40, force_terminal=terminal)
    progress = episode_progress(console)
    for done, total in ((3, 8), (2, 2)):
        progress.update(progress.add_task(f"sums {total} " + 50 * "x", total=total), completed=done)
    progress.live.auto_refresh = False
    with show_progress(progress, seconds=0.001):
        while "3/8" not in console.file.getvalue() and not terminal:
            time.sleep(0.001)
    lines = [line for line in console.file.getvalue().splitlines() if "sums 8" in line]
    assert terminal or (lines[0].startswith("sums 8 " + 50 * "x") and "3/8" in lines[0])
    assert terminal or "2/2" not in console.file.getvalue(), "what is full goes on no longer"
    assert not terminal or "3/8" not in console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_before_a_bar_is_shown_a_line_reports_that_a_command_is_starting(terminal, monkeypatch):
    # Control: no lines on a terminal.
    written = io.StringIO()
    written.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", written)
    with startup_messages("turntree eval begins", seconds=0.001):
        while "begins" not in written.getvalue() and not terminal:
            time.sleep(0.001)
        with show_progress(episode_progress(Console(file=io.StringIO()))):
            time.sleep(0.01)  # what was being written is
            before = written.getvalue()
            time.sleep(0.01)
        assert written.getvalue() == before
    assert ("turntree eval begins, 0 s" in before) is not terminal
