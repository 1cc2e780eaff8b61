from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from turntree.envs.env import Env
from turntree.envs.errors import ToolError
from turntree.envs.math.expression import evaluate, numbers_and_operators
from turntree.envs.message import Message, Reply, Role
from turntree.envs.task import Task
from turntree.envs.verdict import visible
from turntree.rewards import final_answer

OPERATORS = ("+", "-", "*", "/")
_ATTEMPTS = 1000


class Countdown(Env):
    """Write an expression that uses the given numbers and has the given value.

    The answer is ``#### EXPRESSION``. Every number may be used once; with ``use_all`` every number must be used. The
    reward is 1 for a right expression, else 0. ``target=24`` with ``use_all=True`` is the Game of 24.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True

    def __init__(
        self,
        *,
        count: int = 4,
        max_number: int = 25,
        target: int | None = None,
        max_target: int = 100,
        use_all: bool = False,
        attempts: int = 1,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        """Choose the puzzles.

        Args:
            count: How many numbers are given, 2 to 6.
            max_number: Numbers are drawn from 1 to ``max_number``.
            target: The value to reach; ``None`` draws a value for each puzzle.
            max_target: The largest value that is drawn.
            use_all: Whether every number must be used.
            attempts: Answers that the policy may give. After a wrong answer, the policy is told what is wrong.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If an argument is out of range.
        """
        super().__init__(**kwargs)
        if not 2 <= count <= 6:
            raise ValueError(f"count must lie in 2..6, got {count}")
        for name, value in {"max_number": max_number, "max_target": max_target, "attempts": attempts}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.count = count
        self.max_number = max_number
        self.target = target
        self.max_target = max_target
        self.use_all = use_all
        self.attempts = attempts
        self.split = split
        self.attempt = 0

    def default_system_prompt(self) -> str:
        how = "every number exactly once" if self.use_all else "every number at most once"
        return (
            f"Combine the numbers with + - * / and parentheses so that the value is the target; use {how}. "
            "Think, then write the expression on a line of its own: #### (8-2)*4"
        )

    def task(self, index: int) -> Task:
        name = f"{self.count}/{self.max_number}/{self.target or self.max_target}/{self.split}/{index}"
        rng = random.Random(f"turntree/countdown/{name}")
        for _ in range(_ATTEMPTS):
            numbers = [rng.randint(1, self.max_number) for _ in range(self.count)]
            target, solution = self._puzzle(numbers, rng)
            if solution:
                break
        else:
            raise ValueError(f"{_ATTEMPTS} draws of {self.count} numbers up to {self.max_number} had no solution")
        return Task(
            id=f"countdown/{name}",
            prompt=f"Numbers: {', '.join(map(str, numbers))}. Target: {target}.",
            answer=solution,
            data_source="countdown",
            metadata={"numbers": numbers, "target": target},
        )

    def start(self, task: Task) -> Sequence[Message]:
        self.attempt = 0
        return super().start(task)

    def reply(self, message: Message) -> Reply:
        self.attempt += 1
        task = self.current_task
        answer = final_answer(visible(message.content))
        wrong = complaint(answer, task.metadata["numbers"], task.metadata["target"], self.use_all)
        if not wrong or self.attempt == self.attempts:
            right = float(not wrong)
            return Reply(reward=right, done=True, rewards={"correct": right})
        left = self.attempts - self.attempt
        return Reply(messages=[Message(role=Role.USER, content=f"{wrong}. Attempts left: {left}.")])

    def _puzzle(self, numbers: list[int], rng: random.Random) -> tuple[int, str]:
        if self.target is not None:
            return self.target, solve(numbers, self.target)
        terms = [(Fraction(number), str(number)) for number in numbers]
        while len(terms) > 1:
            left, right = rng.sample(terms, 2)
            terms = [term for term in terms if term is not left and term is not right]
            terms.append(rng.choice(_combined(left, right)))
        value, expression = terms[0]
        fits = value.denominator == 1 and 1 <= value <= self.max_target and value not in numbers
        return int(value), expression if fits else ""


_Term = tuple[Fraction, str]


def complaint(expression: str | None, numbers: Sequence[int], target: int, use_all: bool) -> str:
    """Return what is wrong with an answer, in one sentence; empty if it is right.

    Example:
        >>> complaint("(8-2)*4", [2, 4, 8], 24, True), complaint("8*3", [2, 4, 8], 24, False)
        ('', 'The number 3 is not there to be used')
    """
    if expression is None:
        return "I see no expression behind ####"
    try:
        value = evaluate(expression)
        used, operators = numbers_and_operators(expression)
    except ToolError as error:
        return f"The expression cannot be read: {error}"
    strange = [operator for operator in operators if operator not in OPERATORS]
    if strange:
        return f"Only + - * / are allowed, not {strange[0]}"
    too_many = Counter(used) - Counter(map(Fraction, numbers))
    if too_many:
        return f"The number {next(iter(too_many))} is not there to be used"
    if use_all and len(used) < len(numbers):
        return "Every number must be used"
    if value != target:
        return f"The value is {value}, not {target}"
    return ""


def solve(numbers: Sequence[int], target: int) -> str:
    """Return an expression that uses all numbers and has the value ``target``; empty if there is none.

    Example:
        >>> evaluate(solve([4, 7, 8, 8], 24)), solve([1, 1, 1, 1], 24)
        (Fraction(24, 1), '')
    """
    return _search([(Fraction(number), str(number)) for number in numbers], target)


def _search(terms: list[_Term], target: int) -> str:
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else ""
    for i, j in combinations(range(len(terms)), 2):
        rest = [term for at, term in enumerate(terms) if at not in (i, j)]
        for term in _combined(terms[i], terms[j]):
            found = _search([*rest, term], target)
            if found:
                return found
    return ""


def _combined(one: _Term, other: _Term) -> list[_Term]:
    (x, left), (y, right) = one, other
    terms = [
        (x + y, f"({left}+{right})"),
        (x * y, f"({left}*{right})"),
        (x - y, f"({left}-{right})"),
        (y - x, f"({right}-{left})"),
    ]
    if y:
        terms.append((x / y, f"({left}/{right})"))
    if x:
        terms.append((y / x, f"({right}/{left})"))
    return terms
