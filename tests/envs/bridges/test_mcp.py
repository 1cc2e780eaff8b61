import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bridge_results import require_result
from machine_speed import patience
from playing import Errand, call, made_up, use

from turntree.envs import Env, ToolError
from turntree.envs.bridges.mcp import McpTools, serve
from turntree.envs.math.calculator import calculator

pytestmark = pytest.mark.interop
SERVER = Path(__file__).resolve().parents[2] / "support" / "mcp_stdio_server.py"


def command(*arguments: str) -> Any:
    from mcp import StdioServerParameters

    return StdioServerParameters(command=sys.executable, args=[str(SERVER), *arguments])


def children() -> set[str]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {pid for path in found for pid in path.read_text().split()}
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in pids}
    return {pid for pid, path in lines.items() if path.exists() and str(SERVER) in path.read_text()}


def ended() -> bool:
    # Servers that must be killed count, too.
    for _ in range(1200):
        if not children():
            break
        time.sleep(0.05)
    return children() == set()


def env_with(server: Any, seconds: float) -> Env:
    class Shop(Errand):
        toolsets = (McpTools(server, seconds=seconds),)

    return Shop()


@pytest.fixture
def env() -> Iterator[Env]:
    env = env_with(command(), patience(60))
    env.reset(seed=0)
    yield env
    env.close()
    assert children() == set()


def test_tools_of_a_server_are_listed_and_called_and_results_and_mistakes_are_told(env: Env) -> None:
    shown = {entry["function"]["name"]: entry["function"] for entry in env.reset(seed=0)[1]["tools"]}
    assert set(shown) == {"add", "count", "refuse", "linger", "die", "give"}
    assert shown["add"]["description"] == "Add two numbers."
    assert set(shown["add"]["parameters"]["properties"]) == {"a", "b"}
    assert use(env, "add", a=2, b=3) == "5"
    assert [use(env, "count", word=word) for word in ("a", "b")] == ["1", "2"]
    env.reset(seed=1)
    assert use(env, "count", word="a") == "1"
    assert use(env, "give") == "é😀中"
    assert use(env, "give", what="nothing") in ("", "null", "None")
    assert json.loads(use(env, "give", what="object")) == {"a": 1}
    assert 1_000 < len(use(env, "give", what="long")) < 200_000
    env.reset(seed=2)
    assert "not for sale" in use(env, "refuse")
    assert "b" in use(env, "add", a=2)
    assert use(env, "add", a="two", b=1).startswith("Error")
    assert env.step("done")[4]["stop_reason"] == "done"


def test_a_server_that_dies_is_a_failure_and_the_next_episode_has_another(env: Env) -> None:
    info = env.step(call(env, "die"))[4]
    assert (info["stop_reason"], info["failure_kind"]) == ("failure", "tool")
    assert "Connection closed" in info["failure"]
    env.reset(seed=0)
    assert use(env, "add", a=2, b=3) == "5"


def test_a_slow_server_is_a_failure_of_time_and_one_that_says_nothing_is_given_up() -> None:
    env = env_with(command(), patience(60))
    for toolset in env.toolsets:
        toolset.seconds = 2  # type: ignore[attr-defined]
    env.reset(seed=0)
    info = env.step(call(env, "linger", seconds=600))[4]
    assert (info["stop_reason"], info["failure_kind"]) == ("failure", "timeout")
    assert "did not answer within 2 s" in info["failure"]
    env.close()
    assert ended()
    with pytest.raises(TimeoutError, match="did not answer within 2 s"):
        McpTools(command("mute"), seconds=2)
    assert ended()


@made_up
def fetch(key: str, times: int = 1) -> str:
    if key == "air":
        raise ToolError("not for sale")
    if key == "bomb":
        raise OSError("gone")
    return key * times


@pytest.fixture
def store() -> Iterator[Env]:
    env = env_with(serve([fetch, calculator]), patience(60))
    env.reset(seed=0)
    yield env
    env.close()


@pytest.mark.parametrize(
    ("parts", "structured", "said"),
    [
        ([], {"town": "Köln", "degrees": [3, 4]}, '{"town": "Köln", "degrees": [3, 4]}'),
        (["three"], {"degrees": 3}, "three"),
        ([], {}, "{}"),
        ([], None, ""),
    ],
)
def test_a_result_that_is_structured_alone_is_told_as_json(parts: list[str], structured: Any, said: str) -> None:
    from mcp import types
    from mcp.server.lowlevel import Server

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[types.Tool(name="weather", inputSchema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> Any:
        content = [types.TextContent(type="text", text=part) for part in parts]
        wrong = params.arguments.get("wrong", False)
        return types.CallToolResult(content=content, structuredContent=structured, isError=wrong)

    env = env_with(Server("weather", on_list_tools=list_tools, on_call_tool=call_tool), patience(60))
    env.reset(seed=0)
    assert use(env, "weather") == said
    assert use(env, "weather", wrong=True) == f"Error: {said}"
    env.close()


def test_tools_of_ours_are_served_with_their_schemas_and_what_breaks_is_a_failure(store: Env) -> None:
    shown = [entry["function"] for entry in store.reset(seed=0)[1]["tools"]]
    assert [entry["name"] for entry in shown] == ["fetch", "calculator"]
    assert shown[0]["parameters"] == fetch.schema["function"]["parameters"]
    assert use(store, "fetch", key="ab", times=2) == "abab"
    assert use(store, "calculator", expression="6*7") == "42"
    assert use(store, "fetch", key="air") == "Error: not for sale"
    assert use(store, "fetch").startswith("Error: fetch needs the argument 'key'")
    assert store.step(call(store, "fetch", key="bomb"))[4]["stop_reason"] == "failure"
    require_result("mcp", "a server over stdio: tools are listed and called; a slow, mute or dead server is a failure")
