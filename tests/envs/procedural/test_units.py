from fractions import Fraction

import pytest

from turntree.envs import make
from turntree.envs.procedural.units import KINDS, convert


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_wins_and_the_question_said_again_loses(kind: str) -> None:
    env = make("turntree/UnitConversion-v0", kinds=(kind,))
    for index in range(15):
        env.reset(options={"index": index})
        task = env.current_task
        assert env.step(rf"It is \boxed{{{task.answer}}}.")[1:4] == (1.0, True, False), task
        env.reset(options={"index": index})
        given = task.prompt.removeprefix("How much is ").partition(" in ")[0]
        assert env.step(rf"\boxed{{\text{{{given}}}}}")[1:4] == (0.0, True, False), task


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        ("100", "degrees Celsius", "degrees Fahrenheit", "212"),
        ("-40", "degrees Fahrenheit", "degrees Celsius", "-40"),
        ("0", "kelvin", "degrees Celsius", "-273.15"),
        ("36", "km/h", "m/s", "10"),
        ("1", "mi", "km", "1.609344"),
        ("3", "ft", "yd", "1"),
        ("2", "weeks", "h", "336"),
        ("16", "oz", "lb", "1"),
        ("8", "pt", "gal", "1"),
    ],
)
def test_factors_are_exact(value: str, source: str, target: str, result: str) -> None:
    units = {unit.name: unit for kind in KINDS.values() for unit in kind}
    assert convert(Fraction(value), units[source], units[target]) == Fraction(result)
