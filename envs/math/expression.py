"""Evaluate arithmetic written by a model, exactly.

A recursive-descent parser over numbers, ``+ - * / // % ** ^`` and parentheses, with Python's precedence, evaluated in
fractions. Invariant: the limits below bound time and memory for any text; nothing is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from operator import add, floordiv, mod, mul, sub, truediv

from turntree.envs.errors import ToolError

MAX_LENGTH = 200  #: characters of an expression
MAX_DEPTH = 30  #: nested parentheses, signs and powers
MAX_BITS = 400  #: bits of any numerator or denominator, about 120 digits
MAX_EXPONENT = 200  #: absolute value
SHOWN_DIGITS = 12  #: significant digits of a result that is not an integer

_TOKEN = re.compile(r"\s*(?:([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)|(\*\*|//|[-+*/%^()]))")
_SYNONYMS = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
    }
)
_SUMS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {"+": add, "-": sub}
_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "*": mul,
    "/": truediv,
    "//": floordiv,
    "%": mod,
}


def evaluate(expression: str, *, max_operations: int | None = None) -> Fraction:
    """Return the exact value of an expression.

    Args:
        expression: Text such as ``2 + 3*(4 - 1)``; thousands separators are allowed.
        max_operations: Maximum number of binary operations; signs are not counted.

    Raises:
        ToolError: If the text is not arithmetic, divides by zero or exceeds a limit.

    Example:
        >>> evaluate("2 + 3 * 4"), evaluate("1/3 + 1/6")
        (Fraction(14, 1), Fraction(1, 2))
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression has {len(expression)} characters; at most {MAX_LENGTH} are allowed")
    reader = _Reader(_tokens(expression.translate(_SYNONYMS)))
    value = reader.sum(0)
    if reader.next is not None:
        raise ToolError(f"expected an operator or the end, got {reader.next!r}")
    if max_operations is not None and reader.operations > max_operations:
        plural = "operation" if max_operations == 1 else "operations"
        raise ToolError(f"at most {max_operations} {plural} a call, got {reader.operations} in {expression.strip()!r}")
    return value


def numbers_and_operators(expression: str) -> tuple[list[Fraction], list[str]]:
    """Return the numbers and operators of an expression in order; signs count as operators.

    Raises:
        ToolError: If the text holds anything but arithmetic.

    Example:
        >>> numbers_and_operators("(8 - 2)*4")
        ([Fraction(8, 1), Fraction(2, 1), Fraction(4, 1)], ['-', '*'])
    """
    tokens = _tokens(expression.translate(_SYNONYMS))
    numbers = [Fraction(token.replace(",", "")) for token in tokens if _is_number(token)]
    return numbers, [token for token in tokens if not _is_number(token) and token not in "()"]


def format_number(value: Fraction) -> str:
    """Write integers in full, other numbers as decimals of ``SHOWN_DIGITS`` digits.

    Example:
        >>> format_number(Fraction(12)), format_number(Fraction(1, 2)), format_number(Fraction(1, 3))
        ('12', '0.5', '0.333333333333')
    """
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=SHOWN_DIGITS)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return format(rounded.normalize(context), "f")


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self.operations = 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self) -> str:
        token = self.next
        if token is None:
            raise ToolError("the expression ends too early; expected a number")
        self._at += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.next in _SUMS:
            value = self.apply(_SUMS[self.take()], value, self.product(depth))
        return value

    def product(self, depth: int) -> Fraction:
        value = self.signed(depth)
        while self.next in _PRODUCTS:
            value = self.apply(_PRODUCTS[self.take()], value, self.signed(depth))
        return value

    def signed(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {MAX_DEPTH} deep")
        if self.next in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
            return sign * self.signed(depth + 1)
        return self.power(depth)

    def power(self, depth: int) -> Fraction:
        base = self.atom(depth)
        if self.next in ("**", "^"):
            self.take()
            return self.apply(_power, base, self.signed(depth + 1))  # right to left, as in Python
        return base

    def atom(self, depth: int) -> Fraction:
        token = self.take()
        if token == "(":
            value = self.sum(depth + 1)
            if self.next != ")":
                raise ToolError("a parenthesis is not closed; expected ')'")
            self.take()
            return value
        if not _is_number(token):
            raise ToolError(f"expected a number, got {token!r}")
        return Fraction(token.replace(",", ""))

    def apply(
        self, operation: Callable[[Fraction, Fraction], Fraction | int], left: Fraction, right: Fraction
    ) -> Fraction:
        self.operations += 1
        try:
            value = Fraction(operation(left, right))
        except ZeroDivisionError as error:
            raise ToolError("division by zero") from error
        return _bounded(value)


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ToolError(f"expected numbers and + - * / ( ), got {text[at:].lstrip()[:1]!r} in {text!r}")
        tokens.append(match.group(1) or match.group(2))
        at = match.end()
    return tokens


def _is_number(token: str) -> bool:
    return token[-1].isdigit() or token[0].isdigit()


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError(f"an exponent must be an integer, got {format_number(exponent)}")
    if abs(exponent) > MAX_EXPONENT or _bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise ToolError("the power is too large")
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise ToolError("the result has too many digits")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
