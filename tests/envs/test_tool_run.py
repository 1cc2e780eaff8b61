from typing import Any

import numpy as np
import pytest

from turntree.envs import Context, Message, Role, Task, Tool, ToolCall, ToolExecutor, tool
from turntree.envs.calculator import calculator
from turntree.envs.tool_run import answer, prepare


@tool
def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What to say
    """
    return text


@tool
def hint(context: Context, loud: bool = False) -> str:
    """Say the answer.

    Args:
        loud: In capitals
    """
    return context.task.answer.upper() if loud else context.task.answer


def ask(call: ToolCall, *tools: Tool, **kwargs: Any) -> Message:
    [outcome] = ToolExecutor().run([prepare(call, tools, **kwargs)])
    return answer(call, outcome)


def test_the_answer_names_the_tool_and_the_call() -> None:
    message = ask(ToolCall(name="calculator", arguments={"expression": "2*3"}, id="call-1"), calculator)
    assert message.role is Role.TOOL
    assert (message.content, message.name, message.tool_call_id) == ("6", "calculator", "call-1")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall(name="calculater"), "Error: there is no tool 'calculater'; did you mean 'calculator'?"),
        (ToolCall(name="xyz"), "Error: there is no tool 'xyz'; the tools are: calculator"),
        (ToolCall(name="calculator"), "Error: calculator needs the argument 'expression'; it takes: expression"),
        (ToolCall(name="calculator", arguments={"expression": "1/0"}), "Error: division by zero"),
    ],
)
def test_mistakes_of_the_model_are_told_to_it(call: ToolCall, said: str) -> None:
    assert ask(call, calculator).content == said


def test_lone_surrogates_from_the_model_are_replaced() -> None:
    assert ask(ToolCall(name="echo", arguments={"text": "a\ud800b"}), echo).content.encode() == b"a?b"


def test_a_hidden_context_is_filled_in_and_cannot_be_passed_by_the_model() -> None:
    context = Context(task=Task(id="t", prompt="?", answer="four"), np_random=np.random.default_rng(0), turn=1)
    assert ask(ToolCall(name="hint", arguments={"loud": True}), hint, context=context).content == "FOUR"
    smuggled = ToolCall(name="hint", arguments={"context": {"task": "x"}})
    assert ask(smuggled, hint, context=context).content.startswith("Error: hint has no argument")


def test_only_tools_without_instance_and_context_may_run_at_once() -> None:
    assert not prepare(ToolCall(name="echo"), [echo]).shares_state
    assert prepare(ToolCall(name="hint"), [hint]).shares_state
