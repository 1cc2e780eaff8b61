import importlib.util
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playing import arguments_of

from turntree.agents.commands.play import Played, play
from turntree.envs import make
from turntree.envs.catalogue import CATALOGUE, Entry


class Terminal:
    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.shown: list[tuple[str, str]] = []

    def ask(self) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def show(self, who: str, text: str) -> None:
        self.shown.append((who, text))

    def said(self, who: str) -> Sequence[str]:
        return [text for participant, text in self.shown if participant == who]


def played(*lines: str, id: str = "turntree/Arithmetic-v0", **arguments: Any) -> tuple[Played, Terminal]:
    terminal = Terminal(*lines)
    return play(make(id, **arguments), terminal.ask, terminal.show, options={"index": 0}), terminal


def test_a_person_calls_tools_and_wins_or_loses() -> None:
    task = make("turntree/Arithmetic-v0").task(0)
    result, terminal = played("/call calculator 2*3", '/call calculator {"expression": "1+1"}', f"#### {task.answer}")
    assert result == Played(1.0, {"correct": 1.0}, "done")
    assert terminal.said("calculator") == ["6", "2"]
    assert terminal.said("user") == [task.prompt]
    assert played("#### 12345")[0] == Played(0.0, {"correct": 0.0}, "done")
    result, _ = played("I think\\", "#### 1\\", "no, #### 12345")
    assert result.stop_reason == "done"


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_the_first_screen_of_every_environment_ends_with_what_a_person_can_do(entry: Entry, tmp_path: Path) -> None:
    env, terminal = make(entry.id, **arguments_of(entry, tmp_path)), Terminal()
    result = play(env, terminal.ask, terminal.show, options={"index": 0})
    (_, last), spoke = terminal.shown[-1], [who for who, _ in terminal.shown]
    assert result.stop_reason == "quit"
    assert spoke[-2:] == ["user", "help"]
    assert "/quit ends the game" in last
    assert all(tool.name in last for tool in env.offered_tools)
    assert ("/call TOOL" in last) == bool(env.offered_tools)


@pytest.mark.parametrize("lines", [("/quit",), ()])
def test_leaving_ends_the_episode(lines: tuple[str, ...]) -> None:
    assert played(*lines)[0].stop_reason == "quit"


def test_tools_are_listed_and_wrong_calls_and_commands_explained_without_a_turn() -> None:
    result, terminal = played("/tools", "/call x", "/call", '/call calculator {"a', "/help", "/quit")
    assert terminal.said("tool")[0].startswith("calculator(expression): ")
    assert "unknown tool 'x'; the tools are: calculator" in terminal.said("help")
    assert any("are not JSON" in text for text in terminal.said("help"))
    assert any("/quit ends the game" in text for text in terminal.said("help"))
    assert result.reward == 0.0
    result, terminal = played("/tool", "/quite now", " /tools is all I say")
    said = terminal.said("help")
    assert [text.partition(";")[0] for text in said[1:]] == ["unknown command /tool", "unknown command /quite"]
    assert result == Played(0.0, {"correct": 0.0}, "done")  # of the one turn, which had no answer
    _, terminal = played("/call set apple", "/call list_keys", id="turntree/KeyValue-v0")
    assert 'set takes key, value: write /call set {"...": ...}' in terminal.said("help")
    assert len(terminal.said("list_keys")) == 1


@pytest.mark.skipif(importlib.util.find_spec("readline") is None, reason="this Python was built without readline")
def test_a_line_is_edited_at_a_terminal() -> None:
    command = (sys.executable, "-m", "turntree.agents.cli", "play", "turntree/Arithmetic-v0", "--index", "0")
    here, there = pty.openpty()
    process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env={**os.environ, "TERM": "vt100"})
    os.close(there)
    answer = make("turntree/Arithmetic-v0").task(0).answer
    said = b""
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(here, 1024):
            said += chunk
            if said.endswith(b"> "):
                os.write(here, f"### {answer}\x1b[H#\r".encode())  # to the line's beginning, one more #
    os.close(here)
    assert process.wait() == 0
    assert b"done, reward 1" in said, said
