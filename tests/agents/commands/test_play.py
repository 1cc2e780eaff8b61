from collections.abc import Sequence
from typing import Any

import pytest

from turntree.agents.commands.play import Played, play
from turntree.envs import make


class Terminal:
    """Lines that a person types, and all that is shown."""

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
        return [text for speaker, text in self.shown if speaker == who]


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


@pytest.mark.parametrize("lines", [("/quit",), ()])
def test_leaving_ends_the_episode(lines: tuple[str, ...]) -> None:
    assert played(*lines)[0].stop_reason == "quit"


def test_lines_with_a_backslash_belong_together() -> None:
    result, _ = played("I think\\", "#### 1\\", "no, #### 12345")
    assert result.stop_reason == "done"


def test_tools_are_listed_and_wrong_calls_explained_without_a_turn() -> None:
    result, terminal = played("/tools", "/call x", "/call", '/call calculator {"a', "/help", "/quit")
    assert terminal.said("tool")[0].startswith("calculator(expression): ")
    assert "there is no tool 'x'; the tools are: calculator" in terminal.said("help")
    assert any("are no JSON" in text for text in terminal.said("help"))
    assert any("/quit leaves" in text for text in terminal.said("help"))
    assert result.reward == 0.0


def test_a_tool_with_several_arguments_needs_json_and_one_without_needs_none() -> None:
    _, terminal = played("/call set apple", "/call list_keys", id="turntree/KeyValue-v0")
    assert 'set takes key, value: write /call set {"...": ...}' in terminal.said("help")
    assert len(terminal.said("list_keys")) == 1
