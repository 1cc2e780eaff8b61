import pytest

from turntree.envs import Role, ToolCall, tool
from turntree.envs.calculator import calculator
from turntree.envs.tool_run import run_call


def test_the_answer_names_the_tool_and_the_call() -> None:
    call = ToolCall(name="calculator", arguments={"expression": "2*3"}, id="call-1")
    message = run_call(call, [calculator])
    assert message.role is Role.TOOL
    assert (message.content, message.name, message.tool_call_id) == ("6", "calculator", "call-1")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (ToolCall(name="calculater"), "Error: there is no tool 'calculater'; did you mean 'calculator'?"),
        (ToolCall(name="xyz"), "Error: there is no tool 'xyz'; the tools are: calculator"),
        (
            ToolCall(name="calculator"),
            "Error: calculator needs the argument 'expression'; it takes: expression",
        ),
        (ToolCall(name="calculator", arguments={"expression": "1/0"}), "Error: division by zero"),
    ],
)
def test_mistakes_of_the_model_are_told_to_it(call: ToolCall, answer: str) -> None:
    assert run_call(call, [calculator]).content == answer


def test_lone_surrogates_from_the_model_are_replaced() -> None:
    @tool
    def echo(text: str) -> str:
        """Say it again.

        Args:
            text: What to say
        """
        return text

    answer = run_call(ToolCall(name="echo", arguments={"text": "a\ud800b"}), [echo]).content
    assert answer.encode() == b"a?b"
