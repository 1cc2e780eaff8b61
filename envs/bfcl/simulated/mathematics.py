"""Arithmetic, statistics and units. It has no state: a call is judged by its result."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

_PREFIXES = {"k": 1e3, "h": 1e2, "": 1.0, "d": 1e-1, "c": 1e-2, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_IMPERIAL = {
    ("mi", "km"): 1.609344,
    ("yd", "m"): 0.9144,
    ("ft", "m"): 0.3048,
    ("in", "cm"): 2.54,
    ("lb", "kg"): 0.45359237,
    ("oz", "g"): 28.349523125,
    ("gal", "l"): 3.785411784,
}
"""One imperial unit in the SI unit."""
_MAX_DIGITS = 1_000


def _result(function: Callable[..., float]) -> Callable[..., dict[str, float]]:
    """Name the result; what has no finite real one is the model's error."""

    @functools.wraps(function)
    def named(self: Any, **arguments: Any) -> dict[str, float]:
        try:
            result = function(self, **arguments)
            if not isinstance(result, int | float) or not math.isfinite(result):
                raise ValueError(f"the result is {result}")
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ToolError(f"there is no finite real result: {error}") from error
        return {"result": result}

    return named


class Mathematics(Simulator):
    """A calculator."""

    @tool
    @_result
    def absolute_value(self, number: float) -> float:
        """The absolute value of a number.

        Args:
            number: The number
        """
        return abs(number)

    @tool
    @_result
    def add(self, a: float, b: float) -> float:
        """Add two numbers.

        Args:
            a: First number
            b: Second number
        """
        return a + b

    @tool
    @_result
    def subtract(self, a: float, b: float) -> float:
        """Subtract one number from another.

        Args:
            a: Number to subtract from
            b: Number to subtract
        """
        return a - b

    @tool
    @_result
    def multiply(self, a: float, b: float) -> float:
        """Multiply two numbers.

        Args:
            a: First number
            b: Second number
        """
        return a * b

    @tool
    @_result
    def divide(self, a: float, b: float) -> float:
        """Divide one number by another.

        Args:
            a: Numerator
            b: Denominator
        """
        return a / b

    @tool
    @_result
    def power(self, base: float, exponent: float) -> float:
        """Raise a number to a power.

        Args:
            base: The base
            exponent: The exponent
        """
        return math.pow(base, exponent)

    @tool
    @_result
    def percentage(self, part: float, whole: float) -> float:
        """A part of a whole in percent.

        Args:
            part: The part
            whole: The whole
        """
        return part / whole * 100

    @tool
    @_result
    def round_number(self, number: float, decimal_places: int = 0) -> float:
        """Round a number.

        Args:
            number: The number
            decimal_places: How many decimal places stay
        """
        return round(number, decimal_places)

    @tool
    @_result
    def square_root(self, number: float, precision: int) -> float:
        """The square root of a number.

        Args:
            number: The number
            precision: How many digits count
        """
        return float(Context(prec=_digits(precision)).sqrt(Decimal(str(number))))

    @tool
    @_result
    def logarithm(self, value: float, base: float, precision: int) -> float:
        """The logarithm of a number, computed with few digits or many.

        Args:
            value: The number
            base: The base
            precision: How many digits the computation keeps
        """
        import mpmath

        with mpmath.workdps(_digits(precision)):
            return float(mpmath.log(mpmath.mpf(value)) / mpmath.log(mpmath.mpf(base)))

    @tool
    @_result
    def mean(self, numbers: list[float]) -> float:
        """The mean of numbers.

        Args:
            numbers: The numbers
        """
        return math.fsum(_some(numbers)) / len(numbers)

    @tool
    @_result
    def standard_deviation(self, numbers: list[float]) -> float:
        """The standard deviation of numbers that are the whole population.

        Args:
            numbers: The numbers
        """
        return statistics.pstdev(_some(numbers))

    @tool
    @_result
    def max_value(self, numbers: list[float]) -> float:
        """The largest of numbers.

        Args:
            numbers: The numbers
        """
        return max(_some(numbers))

    @tool
    @_result
    def min_value(self, numbers: list[float]) -> float:
        """The smallest of numbers.

        Args:
            numbers: The numbers
        """
        return min(_some(numbers))

    @tool
    @_result
    def sum_values(self, numbers: list[float]) -> float:
        """The sum of numbers.

        Args:
            numbers: The numbers
        """
        return sum(_some(numbers))

    @tool
    @_result
    def si_unit_conversion(self, value: float, unit_in: str, unit_out: str) -> float:
        """Convert metres, grams, seconds, litres and such with another prefix, as km to cm.

        Args:
            value: The value
            unit_in: Its unit
            unit_out: The wanted unit
        """
        (factor_in, base_in), (factor_out, base_out) = _unit(unit_in), _unit(unit_out)
        if base_in != base_out:
            raise ToolError(f"{unit_in} cannot be converted to {unit_out}")
        return value * factor_in / factor_out

    @tool
    @_result
    def imperial_si_conversion(self, value: float, unit_in: str, unit_out: str) -> float:
        """Convert a value between imperial and SI units.

        Args:
            value: The value
            unit_in: Its unit, as ft, lb, F, km
            unit_out: The wanted unit
        """
        pair = (unit_in, unit_out)
        if pair in (("F", "C"), ("C", "F")):
            return (value - 32) * 5 / 9 if unit_in == "F" else value * 9 / 5 + 32
        if pair in _IMPERIAL:
            return value * _IMPERIAL[pair]
        if pair[::-1] in _IMPERIAL:
            return value / _IMPERIAL[pair[::-1]]
        raise ToolError(f"{unit_in} cannot be converted to {unit_out}")


def _some(numbers: list[float]) -> list[float]:
    if not numbers:
        raise ToolError("give at least one number")
    return numbers


def _digits(precision: int) -> int:
    if not 1 <= precision <= _MAX_DIGITS:
        raise ToolError(f"the precision is from 1 to {_MAX_DIGITS} digits")
    return precision


def _unit(unit: str) -> tuple[float, str]:
    """Factor and base of a unit: ``km`` is 1,000 of ``m``."""
    prefix, base = unit[:-1], unit[-1:]
    if prefix not in _PREFIXES or not base.isalpha():
        raise ToolError(f"unknown unit {unit!r}")
    return _PREFIXES[prefix], base
