from collections.abc import Iterator

import pytest
from playing import Errand, call, use

from turntree.envs import Env, ToolError, tool
from turntree.envs.bridges.mcp import McpTools, serve
from turntree.envs.calculator import calculator

pytest.importorskip("mcp", reason='pip install "turntree[mcp]"')


@tool
def fetch(key: str, times: int = 1) -> str:
    """Fetch a thing.

    Args:
        key: Which
        times: How often
    """
    if key == "none":
        raise ToolError("there is no such key")
    if key == "crash":
        raise OSError("the store burnt down")
    return key * times


@pytest.fixture
def env() -> Iterator[Env]:
    class Store(Errand):
        toolsets = (McpTools(serve([fetch, calculator]), seconds=300),)

    env = Store()
    env.reset(seed=0)
    yield env
    env.close()


def test_the_tools_of_a_server_are_there_with_their_schemas(env: Env) -> None:
    shown = [entry["function"] for entry in env.reset(seed=0)[1]["tools"]]
    assert [entry["name"] for entry in shown] == ["fetch", "calculator"]
    assert shown[0]["parameters"] == fetch.schema["function"]["parameters"]
    assert shown[0]["description"] == "Fetch a thing."


def test_calls_go_to_the_server_and_back(env: Env) -> None:
    assert use(env, "fetch", key="ab", times=2) == "abab"
    assert use(env, "calculator", expression="6*7") == "42"


def test_mistakes_of_the_model_are_told_to_it(env: Env) -> None:
    assert use(env, "fetch", key="none") == "Error: there is no such key"
    assert use(env, "fetch").startswith("Error: fetch needs the argument 'key'")


def test_a_tool_that_breaks_on_the_server_is_a_failure(env: Env) -> None:
    assert env.step(call(env, "fetch", key="crash"))[4]["stop_reason"] == "failure"
