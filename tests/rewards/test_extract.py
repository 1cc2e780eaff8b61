from __future__ import annotations

import sys

import pytest
from machine_speed import LINEAR, growth

from turntree.rewards import Status, contract_for, extract, flags


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{3}", "3"),
        (r"$\boxed 7$", "7"),
        (r"put it in \boxed. It is \boxed{4}, not in a \boxed", "4"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"opened in the prompt \boxed{1}</think>\boxed{2}", "2"),
        ("#### 12\n", "12"),
        ("#### Final answer\nThe answer is 5.", "5"),
        ("The answer is $5$.", "$5$"),
        ("**Answer:** 5", "5"),
        ("<answer>9</answer>", "9"),
        ("we get 3 and then 12", "12"),
        (r"so $x = \frac{1}{2}$.", r"x = \frac{1}{2}"),
        (r"\boxed{8} % \boxed{7}", "8"),
        (r"\boxed{8}<!-- \boxed{7} -->", "8"),
        (r"So 25% of 20 is \boxed{5}.", "5"),
    ],
)
def test_the_answer_is_what_the_text_commits_to(text: str, answer: str) -> None:
    assert extract(text).answer == answer


@pytest.mark.parametrize(
    ("text", "status", "flag"),
    [
        ("I cannot solve this.", Status.NO_ANSWER, None),
        ("", Status.NO_ANSWER, None),
        (r"\boxed{}", Status.NO_ANSWER, flags.PLACEHOLDER),
        (r"The result is \boxed{12", Status.NO_ANSWER, None),
        (r"<think>\boxed{5}</think>", Status.NO_ANSWER, flags.THINK_ONLY),
        (r"<think>\boxed{5}", Status.NO_ANSWER, flags.THINK_ONLY),
        (r"It is not \boxed{5}", Status.HACK_SUSPECT, flags.NEGATION),
        ("The answer is not 5.", Status.HACK_SUSPECT, flags.NEGATION),
        ("1 2 3 4 5 6 7 8", Status.HACK_SUSPECT, flags.CANDIDATES),
        ("the grader must say 5", Status.HACK_SUSPECT, flags.GRADER_TALK),
        (r"\boxed{" + "7" * 5000 + "}", Status.REJECTED_LIMITS, flags.HUGE),
    ],
)
def test_a_text_without_an_answer_says_why(text: str, status: Status, flag: str | None) -> None:
    found = extract(text)
    assert found.answer is None
    assert found.status is status
    assert found.flags == ((flag,) if flag else ())


@pytest.mark.parametrize("hidden", [r"\phantom{\boxed{5}}", r"\textcolor{white}{\boxed{5}}"])
def test_a_box_behind_the_answer_that_cannot_be_seen_is_left_out_and_told(hidden: str) -> None:
    found = extract(rf"\boxed{{6}} {hidden}")
    assert (found.answer, found.flags) == ("6", (flags.PHANTOM,))


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        (r"$\boxed{2}$ and $\boxed{3}$", ("2", "3")),
        (r"\boxed{2}. That was wrong, it is \boxed{3}", ()),
    ],
)
def test_boxes_are_a_row_with_its_order_where_no_text_is_between(text: str, candidates: tuple[str, ...]) -> None:
    found = extract(text).found
    assert found is not None
    assert found.candidates == candidates


def test_options_are_letters_not_numbers() -> None:
    assert extract("Of 4 choices I take (C), as 7 shows", contract_for("mmlu-stem")).answer == "C"


@pytest.mark.parametrize(
    ("start", "again", "end"),
    [
        *[("", again, "") for again in (r"\boxed{", r"\boxed{5} ", "{", "(", "$", r"\[", "<think>", "<!--", "####")],
        *[("", again, "") for again in ("the answer is ", "answer (", "1 111")],
        ("", "%", r"\boxed{5}"),
        ("0.", "3", ""),
    ],
)
def test_extraction_is_linear_in_hostile_texts(start: str, again: str, end: str) -> None:
    assert growth(lambda times: extract(start + again * times + end), 700_000 // len(again)) < LINEAR


@pytest.mark.parametrize(
    "text",
    [
        r"So it is \boxed{5}.",
        r"It is not \boxed{5}",
        r"\boxed{5} or 6",
        r"\boxed{5} is wrong",
        r"\[ \boxed{5} \]",
        r"\textcolor{white}{\boxed{5}}",
        r"% \boxed{5}",
        r"<think>\boxed{5}</think>",
        r"the grader: \boxed{5}",
        r"\boxed{5} \fbox{6}",
        r"\boxed{ 5}",
        r"\boxed{05}",
    ],
)
def test_the_short_way_finds_what_the_long_way_finds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = extract(text)
    monkeypatch.setattr(sys.modules["turntree.rewards.extract"], "lone_number", lambda text: None)
    assert extract(text) == short
