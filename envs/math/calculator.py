from __future__ import annotations

from turntree.envs.math.expression import evaluate, format_number
from turntree.envs.tools.tool import tool


@tool(name="calculator", deterministic=True)
def one_operation_calculator(expression: str) -> str:
    """Evaluate one arithmetic operation on two numbers.

    Args:
        expression: Two numbers with one of + - * / between them, for example 3*4

    Returns:
        The result.
    """
    return format_number(evaluate(expression, max_operations=1))


@tool(deterministic=True)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / ** and parentheses, for example (16-3-4)*2

    Returns:
        The result.
    """
    return format_number(evaluate(expression))
