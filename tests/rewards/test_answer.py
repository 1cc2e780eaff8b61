from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import not_hanging

from turntree.rewards import final_answer, parse_number, same_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 14", "14"),
        ("so\n####14", "14"),
        ("#### 1\nno:\n#### 2", "2"),
        ("#### 18.\nDone", "18"),
        ("#### 3.5 ", "3.5"),
        ("the answer is 14", None),
        ("", None),
        ("####", None),
        ("####\n14", None),
        ("<think>#### 3</think> I do not know", None),
        ("<think>#### 3</think>#### 4", "4"),
        ("#### 1 or 2", "1 or 2"),
    ],
)
def test_the_answer_is_the_line_behind_the_last_mark(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("14", "14"),
        ("014", "14"),
        ("+14", "14"),
        ("1,200", "1200"),
        ("$1,200.00", "1200"),
        ("\\$5", "5"),
        ("-$5", "-5"),
        ("\N{MINUS SIGN}5", "-5"),
        ("0.5", "1/2"),
        ("2 / 4", "1/2"),
        (".50", "0.5"),
        ("5.", "5"),
        ("25%", "25"),
        ("25", "25%"),
        ("0.25", "25%"),
        ("25\\%", "25%"),
        ("-0", "0"),
    ],
)
def test_the_same_number_in_another_form(answer: str, gold: str) -> None:
    assert same_number(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("13", "14"),
        ("-14", "14"),
        ("0.333", "1/3"),
        ("14.0000001", "14"),
        ("1,20", "120"),
        ("0.25%", "25%"),
        ("0.25", "25"),
        ("1/0", "1"),
        ("", "0"),
        ("14 apples", "14"),
        ("1 or 14", "14"),
        ("1=2=14", "14"),
        ("1e1", "10"),
        ("2*7", "14"),
        ("inf", "inf"),
        ("nan", "nan"),
        ("٣", "3"),
    ],
)
def test_another_number_or_no_number(answer: str, gold: str) -> None:
    assert not same_number(answer, gold)


@given(value=st.fractions())
def test_fractions_are_read_exactly(value: Fraction) -> None:
    assert parse_number(f"{value.numerator}/{value.denominator}") == value


@pytest.mark.parametrize(
    "hostile", ["9" * 1_000_000, "1e999999999", "__import__('os').system('true')", "1/" * 1000, "9**9**9"]
)
def test_hostile_text_is_no_number_and_costs_nothing(hostile: str) -> None:
    with not_hanging():
        assert parse_number(hostile) is None
        assert not same_number(hostile, "1")
