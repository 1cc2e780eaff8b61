import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playing import Errand, call, made_up, use
from tables import table

from turntree.envs import (
    Context,
    Message,
    Role,
    Task,
    Tool,
    ToolCall,
    ToolDefinitionError,
    ToolError,
    ToolExecutor,
    Toolset,
    tool,
)
from turntree.envs.math.calculator import calculator
from turntree.envs.tools.tool_run import answer, prepare


@tool
def describe(name: str, count: int = 1) -> dict[str, Any]:
    """Describe a thing.

    Args:
        name: Its name
        count: How many
    """
    return {"name": name, "count": count}


class Counter(Errand):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @made_up
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


def test_a_tool_still_is_its_function_returns_text_or_json_and_survives_copy_and_pickle() -> None:
    assert describe("cup", count=2) == {"name": "cup", "count": 2}
    assert describe.__doc__.startswith("Describe a thing.")
    assert repr(describe) == "Tool(describe(name, count))"
    assert calculator.run({"expression": "1+1"}) == "2"
    assert describe.run({"name": "cüp"}) == '{"name": "cüp", "count": 1}'
    assert pickle.loads(pickle.dumps(describe)) is describe
    assert pickle.loads(pickle.dumps(Counter.tools)) == Counter.tools
    assert copy.deepcopy(describe) is describe
    silent = lambda: 1  # noqa: E731
    location = f"{__file__}:{silent.__code__.co_firstlineno}"
    with pytest.raises(ToolDefinitionError, match=f"^{location}: tool .* needs a docstring"):
        Tool(silent)


class Waiting(Errand):
    @made_up
    async def wait(self, text: str) -> dict[str, str]:
        await asyncio.sleep(0)
        if text == "no":
            raise ToolError("not now")
        return {"said": text}


def test_a_coroutine_is_run_to_its_end_in_a_loop_and_without() -> None:
    async def within() -> list[str]:
        return waited()

    def waited() -> list[str]:
        env = Waiting()
        env.reset(seed=0)
        return [use(env, "wait", text=text) for text in ("yes", "no")]

    assert waited() == asyncio.run(within()) == ['{"said": "yes"}', "Error: not now"]


def test_a_decorated_method_becomes_a_tool_of_its_environment_and_a_subclass_may_replace_it() -> None:
    class Doubling(Counter):
        @made_up
        def add(self, amount: int) -> int:
            return Counter.add(self, 2 * amount)

    for kind, result in ((Counter, "4"), (Doubling, "8")):
        counter = kind()
        assert [t.name for t in counter.tools] == ["add"]
        assert counter.tools[0].run({"amount": 4}, owner=counter) == result
        assert counter.add(3) == int(result) * 7 // 4


@made_up
def hint(context: Context, loud: bool = False) -> str:
    return context.task.answer.upper() if loud else context.task.answer


@made_up
def half() -> str:
    return "a\ud800b"


def ask(call: ToolCall, *tools: Tool, **kwargs: Any) -> Message:
    [outcome] = ToolExecutor().run([prepare(call, tools, **kwargs)])
    return answer(call, outcome)


def test_the_answer_names_tool_and_call_and_only_tools_without_state_may_run_at_once() -> None:
    message = ask(ToolCall(name="calculator", arguments={"expression": "2*3"}, id="call-1"), calculator)
    assert message.role is Role.TOOL
    assert (message.content, message.name, message.tool_call_id) == ("6", "calculator", "call-1")
    said = ask(ToolCall(name="half"), half).content
    assert said.encode() == b"a?b"
    assert not prepare(ToolCall(name="describe"), [describe]).shares_state
    assert prepare(ToolCall(name="hint"), [hint]).shares_state


@pytest.mark.parametrize(("call", "said"), table(__file__, "mistaken_calls"))
def test_mistakes_of_the_model_are_told_to_it(call: dict[str, Any], said: str) -> None:
    assert ask(ToolCall(**call), calculator).content == said


def test_a_hidden_context_is_filled_in_and_cannot_be_passed_by_the_model() -> None:
    context = Context(task=Task(id="t", prompt="?", answer="four"), np_random=np.random.default_rng(0), turn=1)
    assert ask(ToolCall(name="hint", arguments={"loud": True}), hint, context=context).content == "FOUR"
    smuggled = ToolCall(name="hint", arguments={"context": {"task": "x"}})
    assert ask(smuggled, hint, context=context).content.startswith("Error: hint has no argument")


class Remote(Tool):
    def __init__(self) -> None:
        parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
        self.schema = {"type": "function", "function": {"name": "echo", "description": "", "parameters": parameters}}

    def run(self, arguments: Any, *, owner: object | None = None, context: Context | None = None) -> str:
        return str(arguments["word"])


def test_a_tool_that_brings_a_schema_alone_is_called_like_any_other() -> None:
    env = Errand()
    env.tools = (Remote(),)
    env.reset(seed=1)
    assert use(env, "echo", word="here") == "here"
    assert not list(env.tool_calls_ahead(call(env, "echo", word="here"))), "it is not declared pure"


class Notebook(Toolset):
    closed: list[str] = []

    def __init__(self, owner: str = "") -> None:
        self.owner = owner
        self.lines: list[str] = []

    @made_up
    def note(self, line: str) -> str:
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


def test_state_lasts_through_an_episode_whose_tools_stand_beside_those_of_the_environment(desk: Desk) -> None:
    use(desk, "note", line="a")
    assert use(desk, "note", line="b") == "Ada: a, b"
    assert [use(desk, "count"), use(desk, "count")] == ["1", "2"]
    _, info = desk.reset(seed=1)
    assert [entry["function"]["name"] for entry in info["tools"]] == ["count", "note"]


def test_every_episode_begins_with_an_instance_of_its_own(desk: Desk) -> None:
    other = Desk()
    other.reset(seed=1)
    use(desk, "note", line="a")
    use(desk, "count")
    assert (use(other, "note", line="x"), use(other, "count")) == ("Ada: x", "1")
    desk.reset(seed=1)
    assert (use(desk, "note", line="b"), use(desk, "count")) == ("Ada: b", "1")
    [prototype] = Desk.toolsets
    assert prototype.lines == []


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


def test_snapshots_hold_the_state(desk: Desk) -> None:
    use(desk, "note", line="a")
    use(desk, "count")
    state = desk.snapshot()
    after = [use(desk, "note", line="b"), use(desk, "count")]
    desk.restore(state)
    assert [use(desk, "note", line="b"), use(desk, "count")] == after == ["Ada: a, b", "2"]
    assert use(pickle.loads(pickle.dumps(desk)), "note", line="c") == "Ada: a, b, c"


def test_two_tools_of_one_name_are_refused_and_a_failing_close_fails_no_episode(desk: Desk, monkeypatch) -> None:
    class Twice(Desk):
        toolsets = (Notebook(), Notebook())

    with pytest.raises(ToolDefinitionError, match="two tools have the name 'note'"):
        Twice().reset(seed=1)
    monkeypatch.setattr(Notebook, "close", lambda self: 1 / 0)
    *_, info = desk.step("I am done.")
    assert info["stop_reason"] == "done"
