from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import not_hanging
from tables import table

from turntree.rewards import final_answer, parse_number, same_number


@pytest.mark.parametrize(("text", "answer"), table(__file__, "marked"))
def test_the_answer_is_the_line_after_the_last_mark(text: str, answer: str) -> None:
    assert final_answer(text) == (answer or None)


@pytest.mark.parametrize(("answer", "gold"), table(__file__, "same_numbers"))
def test_the_same_number_in_another_form(answer: str, gold: str) -> None:
    assert same_number(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), table(__file__, "other_numbers"))
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
