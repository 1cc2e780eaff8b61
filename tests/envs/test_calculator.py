import pytest

from turntree.envs import ToolError
from turntree.envs.calculator import calculator, one_operation_calculator


def test_the_calculator_takes_whole_expressions() -> None:
    assert calculator.run({"expression": "(16-3-4)*2"}) == "18"


def test_the_one_operation_calculator_refuses_a_second_operation() -> None:
    assert one_operation_calculator.run({"expression": "3*4"}) == "12"
    with pytest.raises(ToolError, match="at most 1 operation"):
        one_operation_calculator.run({"expression": "2+3*4"})


def test_the_model_sees_both_under_the_same_name_with_one_text_parameter() -> None:
    for tool in (calculator, one_operation_calculator):
        assert tool.name == "calculator"
        assert {name: schema["type"] for name, schema in tool.properties.items()} == {"expression": "string"}
