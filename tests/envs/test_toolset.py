import pickle
from collections.abc import Callable
from typing import Any

import pytest
from playing import Errand, call, use

from turntree.envs import Context, ToolDefinitionError, Toolset, tool


class Notebook(Toolset):
    closed: list[str] = []

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.lines: list[str] = []

    @tool
    def note(self, line: str) -> str:
        """Write a line down.

        Args:
            line: What to write
        """
        if line == "fire":
            raise OSError("the notebook burnt")
        self.lines.append(line)
        return f"{self.owner}: {', '.join(self.lines)}"

    def close(self) -> None:
        Notebook.closed.append(", ".join(self.lines))


@tool
def count(context: Context) -> int:
    """Count the calls of this episode."""
    context.state["count"] = context.state.get("count", 0) + 1
    return int(context.state["count"])


class Desk(Errand):
    tools = (count,)
    toolsets = (Notebook("Ada"),)


@pytest.fixture
def desk() -> Desk:
    Notebook.closed = []
    env = Desk()
    env.reset(seed=1)
    return env


def test_state_lasts_through_the_turns_of_an_episode(desk: Desk) -> None:
    use(desk, "note", line="a")
    assert use(desk, "note", line="b") == "Ada: a, b"
    assert [use(desk, "count"), use(desk, "count")] == ["1", "2"]


def test_every_episode_begins_with_an_instance_of_its_own(desk: Desk) -> None:
    other = Desk()
    other.reset(seed=1)
    use(desk, "note", line="a")
    use(desk, "count")
    assert (use(other, "note", line="x"), use(other, "count")) == ("Ada: x", "1")
    desk.reset(seed=1)
    assert (use(desk, "note", line="b"), use(desk, "count")) == ("Ada: b", "1")
    [prototype] = Desk.toolsets
    assert isinstance(prototype, Notebook)
    assert prototype.lines == []


def test_the_model_sees_its_tools_beside_those_of_the_environment(desk: Desk) -> None:
    _, info = desk.reset(seed=1)
    assert [entry["function"]["name"] for entry in info["tools"]] == ["count", "note"]


def test_the_instance_is_closed_at_the_end_of_the_episode_whichever_end(desk: Desk) -> None:
    ends: dict[str, Callable[[], Any]] = {
        "done": lambda: desk.step("I am done."),
        "reset": lambda: desk.reset(seed=1),
        "failure": lambda: desk.step(call(desk, "note", line="fire")),
        "close": desk.close,
    }
    ended = {}
    for line, end in ends.items():
        desk.reset(seed=1)
        use(desk, "note", line=line)
        ended[line] = end()
    desk.close()
    assert list(dict.fromkeys(filter(None, Notebook.closed))) == list(ends)
    assert ended["failure"][4]["failure"] == "tool 'note' raised OSError: the notebook burnt"


def test_a_failing_close_fails_no_episode(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "close", lambda self: 1 / 0)
    *_, info = desk.step("I am done.")
    assert info["stop_reason"] == "done"


def test_snapshots_hold_the_state(desk: Desk) -> None:
    use(desk, "note", line="a")
    use(desk, "count")
    state = desk.snapshot()
    after = [use(desk, "note", line="b"), use(desk, "count")]
    desk.restore(state)
    assert [use(desk, "note", line="b"), use(desk, "count")] == after == ["Ada: a, b", "2"]
    copy = pickle.loads(pickle.dumps(desk))
    assert use(copy, "note", line="c") == "Ada: a, b, c"


def test_two_tools_of_one_name_are_refused() -> None:
    class Twice(Desk):
        toolsets = (Notebook(), Notebook())

    with pytest.raises(ToolDefinitionError, match="two tools have the name 'note'"):
        Twice().reset(seed=1)
