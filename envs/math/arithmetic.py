"""Generate arithmetic tasks: an expression, and a calculator that does one operation per call.

An expression of n numbers takes n - 1 calls and a last turn ``#### x``, so even a tiny policy needs several turns and
has to respect operator precedence.
"""

from __future__ import annotations

import random
from typing import Any

from turntree.envs.env import Env
from turntree.envs.math.calculator import one_operation_calculator
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.verdict import score_final_answer

OPERATORS = "+-*"
MAX_INTERMEDIATE = 999  #: greatest absolute value of an intermediate result
_ATTEMPTS = 10_000


class Arithmetic(Env):
    """Evaluate expressions such as ``2+3*4-1``.

    The episode ends with the first turn that calls no tool. The reward is 1 if that turn contains ``#### x`` with the
    right ``x``, else 0. Tasks are unlimited; an index gives the same task in every process. The same small expression
    may occur under several indices and in several splits.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    describes_tools = True
    tools = (one_operation_calculator,)

    def __init__(
        self,
        *,
        min_numbers: int = 2,
        max_numbers: int = 5,
        max_value: int = 9,
        operators: str = OPERATORS,
        allow_negative: bool = False,
        long_every: int = 0,
        long_numbers: int = 10,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        """Choose the expressions.

        Args:
            min_numbers: Minimum count of numbers in an expression, at least 1.
            max_numbers: Maximum count of numbers in an expression.
            max_value: Numbers are drawn from 1 to ``max_value``.
            operators: Operators to draw from, one or more of ``+-*``.
            allow_negative: Whether intermediate results may fall below 0.
            long_every: Every ``long_every``-th task is long, so that batches have a long tail; 0 for no long tasks.
            long_numbers: Count of numbers in a long task's expression.
            split: Part of every task's id and seed, for example ``train`` or ``test``.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If no expression can be drawn from these settings.
        """
        super().__init__(**kwargs)
        if not 1 <= min_numbers <= max_numbers:
            raise ValueError(
                f"expected 1 <= min_numbers <= max_numbers, got min_numbers={min_numbers}, max_numbers={max_numbers}"
            )
        if not 1 <= max_value <= MAX_INTERMEDIATE:
            raise ValueError(f"max_value must lie in 1..{MAX_INTERMEDIATE}, got {max_value}")
        if long_every < 0 or long_numbers < 1:
            raise ValueError(
                f"expected long_every >= 0 and long_numbers >= 1, got long_every={long_every}, "
                f"long_numbers={long_numbers}"
            )
        if not operators or set(operators) - set(OPERATORS):
            raise ValueError(f"operators must be some of {OPERATORS!r}, got {operators!r}")
        self.min_numbers = min_numbers
        self.max_numbers = max_numbers
        self.max_value = max_value
        self.operators = operators
        self.allow_negative = allow_negative
        self.long_every = long_every
        self.long_numbers = long_numbers
        self.split = split

    def default_system_prompt(self) -> str:
        call = self.parser.format_call(ToolCall(name="calculator", arguments={"expression": "3*4"}))
        return (
            "Evaluate the arithmetic expression. The calculator does one operation a call; "
            f"call it like this:\n{call}\n"
            "When you know the value x of the whole expression, answer with #### x"
        )

    def task(self, index: int) -> Task:
        rng = random.Random(f"turntree/arithmetic/{self.split}/{index}")
        count = rng.randint(self.min_numbers, self.max_numbers)
        if self.long_every and index % self.long_every == self.long_every - 1:
            count = self.long_numbers
        for _ in range(_ATTEMPTS):
            numbers = [rng.randint(1, self.max_value) for _ in range(count)]
            operators = [rng.choice(self.operators) for _ in range(count - 1)]
            results = intermediate_results(numbers, operators)
            if all(self._lowest <= result <= MAX_INTERMEDIATE for result in results):
                break
        else:
            raise ValueError(
                f"{_ATTEMPTS} expressions of {count} numbers up to {self.max_value} with the operators "
                f"{self.operators!r} all had intermediate results outside of "
                f"{self._lowest}..{MAX_INTERMEDIATE}; use fewer or smaller numbers"
            )
        prompt = str(numbers[0]) + "".join(f"{op}{n}" for op, n in zip(operators, numbers[1:], strict=True))
        return Task(
            id=f"arithmetic/{self.split}/{index}", prompt=prompt, answer=str(results[-1]), data_source="arithmetic"
        )

    def reply(self, message: Message) -> Reply:
        return score_final_answer(message.content, self.current_task.answer)

    @property
    def _lowest(self) -> int:
        return -MAX_INTERMEDIATE if self.allow_negative else 0


def intermediate_results(numbers: list[int], operators: list[str]) -> list[int]:
    """Return every intermediate result of the expression: products first, then sums from left to right.

    Args:
        numbers: Operands, shape (n,).
        operators: Operators between the numbers, each one of ``+-*``, shape (n - 1,).

    Returns:
        One result per operation; the last result is the expression's value. For a single number, the number itself.

    Example:
        >>> intermediate_results([2, 3, 4, 1], ["+", "*", "-"])
        [12, 14, 13]
    """
    results = []
    terms, signs = [numbers[0]], []
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "*":
            terms[-1] *= number
            results.append(terms[-1])
        else:
            terms.append(number)
            signs.append(1 if operator == "+" else -1)
    value = terms[0]
    for sign, term in zip(signs, terms[1:], strict=True):
        value += sign * term
        results.append(value)
    return results or [value]
