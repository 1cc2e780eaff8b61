import copy
import pickle
from typing import Any

import pytest
from playing import Errand

from turntree.envs import Tool, ToolDefinitionError, tool
from turntree.envs.calculator import calculator, one_operation_calculator


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

    @tool
    def add(self, amount: int) -> int:
        """Add to the total.

        Args:
            amount: How much
        """
        self.total += amount
        return self.total


def test_a_tool_still_is_its_function() -> None:
    assert describe("cup", count=2) == {"name": "cup", "count": 2}
    assert describe.__doc__ is not None
    assert describe.__doc__.startswith("Describe a thing.")
    assert repr(describe) == "Tool(describe(name, count))"


def test_run_returns_text_as_it_is_and_anything_else_as_json() -> None:
    assert calculator.run({"expression": "1+1"}) == "2"
    assert describe.run({"name": "cüp"}) == '{"name": "cüp", "count": 1}'


def test_another_name_can_be_given() -> None:
    assert one_operation_calculator.name == "calculator"


def test_a_decorated_method_becomes_a_tool_of_its_environment_and_a_subclass_may_replace_it() -> None:
    class Doubling(Counter):
        @tool
        def add(self, amount: int) -> int:
            """Add twice to the total.

            Args:
                amount: How much
            """
            return Counter.add(self, 2 * amount)

    for kind, said in ((Counter, "4"), (Doubling, "8")):
        counter = kind()
        assert [t.name for t in counter.tools] == ["add"]
        assert counter.tools[0].run({"amount": 4}, owner=counter) == said
        assert counter.add(3) == int(said) * 7 // 4


def test_tools_survive_copy_and_pickle_as_themselves() -> None:
    assert pickle.loads(pickle.dumps(describe)) is describe
    assert pickle.loads(pickle.dumps(Counter.tools)) == Counter.tools
    assert copy.deepcopy(describe) is describe


def test_a_function_that_cannot_be_a_tool_is_refused_at_once() -> None:
    with pytest.raises(ToolDefinitionError, match="needs a docstring"):
        Tool(lambda: 1)
