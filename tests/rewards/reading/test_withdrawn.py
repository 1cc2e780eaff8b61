import pytest
from tables import table

from turntree.rewards import score
from turntree.rewards.reading import boxes
from turntree.rewards.reading.withdrawn import is_withdrawn


@pytest.mark.parametrize("rest", table(__file__, "withdrawn"))
def test_an_answer_that_the_text_takes_back_is_not_paid(rest: str):
    verdict = score(rf"So it is \boxed{{5}}{rest}", "5", "math", question="")
    assert (verdict.score, verdict.flags) == (0.0, ("negation",))


@pytest.mark.parametrize("rest", table(__file__, "kept"))
def test_a_remark_that_keeps_the_answer_does_not_withdraw_it(rest: str):
    assert score(rf"So it is \boxed{{5}}{rest}", "5", "math", question="").score == 1.0


def test_an_answer_taken_back_would_be_paid_without_the_phrases(monkeypatch: pytest.MonkeyPatch):
    # Control.
    monkeypatch.setattr(boxes, "is_withdrawn", lambda rest, content: False)
    with pytest.raises(AssertionError):
        test_an_answer_that_the_text_takes_back_is_not_paid(". Scratch that, 7.")


@pytest.mark.parametrize(
    ("content", "value", "withdrawn"),
    [
        (r"\frac{1}{3}", "0.333", False),
        (r"\frac{1}{3}", "0.25", True),
        ("0.5", "50%", False),
        (r"\text{B}", "B", False),
        (r"\text{B}", "C", True),
        ("B", "12", False),  # the value of option B
        ("1,200", "1200", False),
        ("1e999999999", "7", False),  # such a power is never computed
    ],
)
def test_another_value_withdraws_and_the_same_value_in_another_form_does_not(content, value, withdrawn):
    assert is_withdrawn(f". The correct answer is {value}.", content) == withdrawn
