import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import not_hanging

from turntree.envs import ToolError
from turntree.envs.expression import MAX_BITS, evaluate, format_number

numbers = st.integers(0, 99).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=8,
)


@given(expression=expressions)
def test_agrees_with_python_on_fractions(expression: str) -> None:
    exact = re.sub(r"\d+", r"Fraction(\g<0>)", expression)
    try:
        expected = eval(exact, {"Fraction": Fraction})  # an expression of our own making
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(expression)
        return
    assert evaluate(expression) == expected


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        *[("2+3*4-1", 13), ("(2+3)*4", 20), ("-2**2", -4), ("2**3**2", 512), ("2^-1", Fraction(1, 2)), ("7//2", 3)],
        *[("-7 % 3", 2), ("3--4", 7), ("+5", 5), ("0.1+0.2", Fraction(3, 10)), (".5*4", 2), ("1,200/2", 600)],
        *[("6÷2\N{MULTIPLICATION SIGN}3", 9), ("5 \N{MINUS SIGN} 8", -3), ("((((1))))", 1)],
    ],
)
def test_value_of(expression: str, value: Fraction | int) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        *[(text, "ends too early") for text in ("", "2+", "2**")],
        *[("2 3", "expected an operator or the end, got '3'"), ("*2", "expected a number, got '*'")],
        *[("(2+3", "not closed"), ("2)", "got ')'"), ("x+1", "got 'x'"), ("__import__('os')", "got '_'")],
        *[("٣+1", "got '٣'"), ("9" * 150 + "*1", "too many digits"), ("1" + "+1" * 200, "401 characters")],
        *[(text, "division by zero") for text in ("1/0", "1%0", "0**-1")],
        *[("2**0.5", "exponent must be an integer, got 0.5"), ("9**999", "power is too large")],
        *[(text, "nested more than") for text in ("(" * 60 + "1" + ")" * 60, "-" * 100 + "1")],
    ],
)
def test_what_is_wrong_is_told_to_the_model(expression: str, complaint: str) -> None:
    with pytest.raises(ToolError) as error:
        evaluate(expression)
    assert complaint in str(error.value)


@pytest.mark.parametrize("expression", ["**".join(["9"] * 60), "(" * 199, "9**9**9**9**9", "10**200*10**200"])
def test_hostile_input_is_refused_at_once(expression: str) -> None:
    with not_hanging(), pytest.raises(ToolError):
        evaluate(expression)


@given(text=st.text(alphabet="0123456789+-*/%^().,$ x", max_size=60))
def test_every_text_has_a_bounded_value_or_a_tool_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ToolError:
        return
    assert value.numerator.bit_length() <= MAX_BITS
    format_number(value)


def test_operations_are_counted_without_signs() -> None:
    assert evaluate("-3*-4", max_operations=1) == 12
    assert evaluate("(14)", max_operations=1) == 14
    with pytest.raises(ToolError, match="at most 1 operation a call, got 2 in '2\\+3\\*4'"):
        evaluate("2+3*4", max_operations=1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(Fraction(-12), "-12"), (Fraction(10**30), "1" + "0" * 30), (Fraction(5, 2), "2.5")],
        *[(Fraction(2, 3), "0.666666666667"), (Fraction(-1, 8), "-0.125"), (Fraction(10**6 + 1, 10**6), "1.000001")],
        (Fraction(1, 10**20), "0." + "0" * 19 + "1"),
    ],
)
def test_numbers_are_written_plainly(value: Fraction, text: str) -> None:
    assert format_number(value) == text
