from __future__ import annotations

import io

from rich.console import Console

from turntree.agents.commands.progress import episode_progress


def bar_after(*minutes: float) -> str:
    """What is shown of an evaluation of eight episodes, two of which end after each of these minutes."""
    seconds = [0.0]
    console = Console(file=io.StringIO(), width=120)
    progress = episode_progress(console, lambda: seconds[-1])
    bar = progress.add_task("sums", total=8)
    for number, minute in enumerate(minutes, start=1):
        seconds.append(60 * minute)
        progress.update(bar, completed=2 * number)
    with console.capture() as shown:
        console.print(progress.get_renderable())
    return shown.get()


def test_the_bar_has_a_rate_and_the_time_left() -> None:
    shown = bar_after(0.1, 0.2, 0.3)
    assert "sums" in shown
    assert "6/8" in shown
    assert "20.0/min" in shown
    assert shown.split("left")[1].split()[0] == "0:00:06"


def test_before_two_episodes_have_ended_nothing_is_promised() -> None:
    shown = bar_after()
    assert "0/8" in shown
    assert "/min" not in shown
    assert "-:--:--" in shown
