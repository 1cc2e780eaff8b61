from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from turntree.envs.env import Env
from turntree.envs.math.calculator import calculator
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.verdict import grade_answer

MAX_LEVEL = 4


class Equations(Env):
    r"""Solve an equation; the answer lists all solutions in the last ``\boxed{}``.

    Level 1 has equations such as ``3x + 5 = 11``. In level 2 the unknown is on both sides and the solution is a
    fraction. Level 3 is quadratic. Level 4 is a system with two unknowns. The reward is 1 if the answer has all
    solutions and nothing else, in any order and form, else 0.
    """

    forkable = True
    describes_tools = True
    tools = (calculator,)

    def __init__(self, *, min_level: int = 1, max_level: int = MAX_LEVEL, split: str = "train", **kwargs: Any) -> None:
        """Choose the equations.

        Args:
            min_level: Lowest level, at least 1.
            max_level: Highest level, at most 4.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If a level is out of range.
        """
        super().__init__(**kwargs)
        if not 1 <= min_level <= max_level <= MAX_LEVEL:
            raise ValueError(f"expected 1 <= min_level <= max_level <= {MAX_LEVEL}, got {min_level} and {max_level}")
        self.min_level = min_level
        self.max_level = max_level
        self.split = split

    def default_system_prompt(self) -> str:
        call = self.parser.format_call(ToolCall(name="calculator", arguments={"expression": "(11-5)/3"}))
        return (
            f"Solve the equation. You may use the calculator; call it like this and wait for the result:\n{call}\n"
            r"End with all solutions in \boxed{}, separated by commas; two unknowns as a point \boxed{(x, y)}."
        )

    def task(self, index: int) -> Task:
        name = f"{self.min_level}-{self.max_level}/{self.split}/{index}"
        rng = random.Random(f"turntree/equations/{name}")
        level = rng.randint(self.min_level, self.max_level)
        equation, solution = _MAKERS[level - 1](rng)
        return Task(
            id=f"equations/{name}",
            prompt=f"Solve: {equation}",
            answer=solution,
            data_source="math",
            metadata={"level": level},
        )

    def reply(self, message: Message) -> Reply:
        correct = float(bool(grade_answer(message.content, self.current_task).correct))
        return Reply(reward=correct, done=True, rewards={"correct": correct})


def _one_side(rng: random.Random) -> tuple[str, str]:
    x, a, b = rng.randint(-12, 12), rng.randint(2, 12), _nonzero(rng, 20)
    return f"{_sum((a, 'x'), (b, ''))} = {a * x + b}", str(x)


def _both_sides(rng: random.Random) -> tuple[str, str]:
    a, b, d = _nonzero(rng, 12), _nonzero(rng, 20), _nonzero(rng, 20)
    c = rng.choice([c for c in range(-12, 13) if c not in (0, a)])
    return f"{_sum((a, 'x'), (b, ''))} = {_sum((c, 'x'), (d, ''))}", str(Fraction(d - b, a - c))


def _quadratic(rng: random.Random) -> tuple[str, str]:
    a, p, q = rng.choice((1, 1, 1, 2, 3)), rng.randint(-9, 9), rng.randint(-9, 9)
    solutions = ", ".join(map(str, sorted({p, q})))
    return f"{_sum((a, 'x^2'), (-a * (p + q), 'x'), (a * p * q, ''))} = 0", solutions


def _system(rng: random.Random) -> tuple[str, str]:
    x, y = rng.randint(-9, 9), rng.randint(-9, 9)
    a, b, c = _nonzero(rng, 7), _nonzero(rng, 7), _nonzero(rng, 7)
    d = rng.choice([d for d in range(-7, 8) if d and a * d != b * c])
    first = f"{_sum((a, 'x'), (b, 'y'))} = {a * x + b * y}"
    return f"{first} and {_sum((c, 'x'), (d, 'y'))} = {c * x + d * y}", f"({x}, {y})"


_MAKERS = (_one_side, _both_sides, _quadratic, _system)


def _nonzero(rng: random.Random, bound: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, bound)


def _sum(*terms: tuple[int, str]) -> str:
    # Writes (factor, name) pairs as a person would: (1, "x"), (-3, "") becomes "x - 3".
    text = ""
    for factor, name in terms:
        if factor == 0:
            continue
        size = "" if abs(factor) == 1 and name else str(abs(factor))
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += f"{sign}{size}{name}"
    return text
