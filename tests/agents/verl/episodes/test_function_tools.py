import asyncio

import pytest

from turntree.agents.verl.episodes.function_tools import function_tools, register
from turntree.envs import Context, ToolDefinitionError, tool
from turntree.envs.math.calculator import calculator

registry = pytest.importorskip("verl.tools.function_tool", reason="verl is not installed")


@tool
def remember(word: str, context: Context) -> str:
    """Remember a word.

    Args:
        word: Which
    """
    return word


def test_verl_calls_a_tool_by_the_schema_that_it_would_infer_and_mistakes_are_told_to_the_model() -> None:
    [made] = function_tools([calculator])
    assert asyncio.run(made.call({"expression": "6*7"})) == "42"
    assert asyncio.run(made.call({"expression": "1/0"})) == "Error: division by zero"
    assert asyncio.run(made.call({"formula": "1"})).startswith("Error: calculator has no argument")
    assert made.tool_schema == registry._build_schema_from_fn(calculator.function, "calculator")


def test_registered_tools_are_found_by_name_and_one_with_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FUNCTION_TOOL_REGISTRY", {})
    register([calculator])
    assert registry.get_function_tool("calculator").name == "calculator"
    with pytest.raises(ToolDefinitionError, match="'remember' does"):
        function_tools([remember])
