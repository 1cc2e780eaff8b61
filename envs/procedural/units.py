from __future__ import annotations

import random
from fractions import Fraction
from typing import Any, NamedTuple

from turntree.envs.env import Env
from turntree.envs.math.calculator import calculator
from turntree.envs.math.expression import format_number
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.verdict import grade_answer


class Unit(NamedTuple):
    # `value * factor + zero` converts a value to the base unit of its kind (such as length).

    name: str  #: symbol
    factor: Fraction  #: size in base units
    zero: Fraction = Fraction(0)  #: offset in base units


def _kind(**factors: str) -> tuple[Unit, ...]:
    return tuple(Unit(name.replace("_per_", "/"), Fraction(factor)) for name, factor in factors.items())


#: kind of quantity -> its units
KINDS: dict[str, tuple[Unit, ...]] = {
    "length": _kind(mm="0.001", cm="0.01", m="1", km="1000", inch="0.0254", ft="0.3048", yd="0.9144", mi="1609.344"),
    "mass": _kind(mg="0.001", g="1", kg="1000", t="1000000", oz="28.349523125", lb="453.59237"),
    "time": _kind(s="1", min="60", h="3600", days="86400", weeks="604800"),
    "volume": _kind(mL="0.001", cL="0.01", L="1", gal="3.785411784", pt="0.473176473"),
    "speed": _kind(m_per_s="1", km_per_h="5/18", mi_per_h="0.44704"),
    "temperature": (
        Unit("degrees Celsius", Fraction(1), Fraction(5463, 20)),
        Unit("degrees Fahrenheit", Fraction(5, 9), Fraction(45967, 180)),
        Unit("kelvin", Fraction(1)),
    ),
}
_VALUES = (
    "1",
    "2",
    "3",
    "5",
    "8",
    "12",
    "20",
    "36",
    "45",
    "60",
    "90",
    "120",
    "250",
    "1.5",
    "2.5",
    "0.5",
    "7.2",
    "0.75",
)
_MAX_DIGITS = 10


class UnitConversion(Env):
    r"""Convert a quantity; the answer is the exact number, in the last ``\boxed{}``.

    Every result is a decimal of at most ten digits. The reward is 1 for the right number, with or without its unit,
    else 0.
    """

    forkable = True
    describes_tools = True
    tools = (calculator,)

    def __init__(self, *, kinds: tuple[str, ...] = tuple(KINDS), split: str = "train", **kwargs: Any) -> None:
        """Choose the quantities.

        Args:
            kinds: Kinds of quantities to draw from, keys of ``KINDS``.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If a kind is unknown.
        """
        super().__init__(**kwargs)
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ValueError(f"kinds must be some of {', '.join(KINDS)}, got {unknown or kinds!r}")
        self.kinds = tuple(kinds)
        self.split = split

    def default_system_prompt(self) -> str:
        call = self.parser.format_call(ToolCall(name="calculator", arguments={"expression": "2.5*1000"}))
        return (
            f"Convert the quantity. You may use the calculator; call it like this and wait for the result:\n{call}\n"
            r"End with the exact number, not rounded, in \boxed{}."
        )

    def task(self, index: int) -> Task:
        rng = random.Random(f"turntree/units/{','.join(self.kinds)}/{self.split}/{index}")
        while True:
            kind = rng.choice(self.kinds)
            source, target = rng.sample(KINDS[kind], 2)
            value = rng.choice(_VALUES)
            result = convert(Fraction(value), source, target)
            if _is_short(result):
                break
        return Task(
            id=f"units/{'+'.join(self.kinds)}/{self.split}/{index}",
            prompt=f"How much is {value} {source.name} in {target.name}?",
            answer=format_number(result),
            data_source="math",
            metadata={"kind": kind, "source": source.name, "target": target.name},
        )

    def reply(self, message: Message) -> Reply:
        correct = float(bool(grade_answer(message.content, self.current_task).correct))
        return Reply(reward=correct, done=True, rewards={"correct": correct})


def convert(value: Fraction, source: Unit, target: Unit) -> Fraction:
    return (value * source.factor + source.zero - target.zero) / target.factor


def _is_short(value: Fraction) -> bool:
    scaled = value * 10**_MAX_DIGITS
    return scaled.denominator == 1 and len(format_number(value).replace("-", "").replace(".", "")) <= _MAX_DIGITS
