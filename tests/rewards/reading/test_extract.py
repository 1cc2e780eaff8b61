import sys

import pytest
from machine_speed import LINEAR, growth
from tables import table

from turntree.rewards import Status, answer_format_for, extract
from turntree.rewards.reading import flags


@pytest.mark.parametrize(("text", "answer"), table(__file__, "committed"))
def test_the_answer_is_what_the_text_commits_to(text: str, answer: str) -> None:
    assert extract(text).answer == answer


@pytest.mark.parametrize(
    ("text", "status", "flagged"),
    [*table(__file__, "no_answer"), (r"\boxed{" + "7" * 5000 + "}", Status.REJECTED_LIMITS, [flags.HUGE])],
)
def test_a_text_without_an_answer_says_why(text: str, status: str, flagged: list[str]) -> None:
    found = extract(text)
    assert (found.answer, found.status, list(found.flags)) == (None, Status(status), flagged)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(b)", "B"),
        ("It must be B, as A, C and D are wrong.", "B"),
        ("It must be B (A, C, D are wrong).", "B"),
        ("A is wrong. B is right.", "B"),
        ("It is B. A and C are wrong.", "B"),
        ("First I took B, but C is right.", "C"),
        ("\u9009B", "B"),
    ],
)
def test_an_option_that_is_ruled_out_is_not_chosen(text: str, letter: str) -> None:
    assert extract(text, answer_format_for("mmlu-stem")).answer == letter


@pytest.mark.parametrize("hidden", [r"\phantom{\boxed{5}}", r"\textcolor{white}{\boxed{5}}"])
def test_a_hidden_box_after_the_answer_is_ignored_and_flagged(hidden: str) -> None:
    found = extract(rf"\boxed{{6}} {hidden}")
    assert (found.answer, found.flags) == ("6", (flags.PHANTOM,))


@pytest.mark.parametrize(
    ("text", "candidates"),
    [(r"$\boxed{2}$ and $\boxed{3}$", ("2", "3")), (r"\boxed{2}. That was wrong, it is \boxed{3}", ())],
)
def test_boxes_are_a_row_with_its_order_where_no_text_is_between(text: str, candidates: tuple[str, ...]) -> None:
    assert extract(text).found.candidates == candidates


def test_options_are_letters_not_numbers() -> None:
    assert extract("Of 4 choices I take (C), as 7 shows", answer_format_for("mmlu-stem")).answer == "C"


@pytest.mark.parametrize(("text", "letter"), table(__file__, "options_in_prose"))
def test_of_options_in_prose_the_last_sentence_must_name_one(text: str, letter: str) -> None:
    found = extract(text, answer_format_for("mmlu-stem"))
    assert (found.answer or "", found.flags) == (letter, () if letter else (flags.CANDIDATES,))


@pytest.mark.parametrize(("text", "guessed"), table(__file__, "guessed"))
def test_the_last_value_of_prose_is_a_guess_and_what_is_called_the_answer_is_none(text: str, guessed: bool) -> None:
    found = extract(text).found
    assert found is not None
    assert (found.text, found.guessed) == ("7", guessed)


@pytest.mark.parametrize(
    ("start", "again", "end"),
    [
        *[("", again, "") for again in (r"\boxed{", r"\boxed{5} ", "{", "(", "$", r"\[", "<think>", "<!--", "####")],
        *[("", again, "") for again in ("the answer is ", "answer (", "1 111")],
        ("", "%", r"\boxed{5}"),
        ("0.", "3", ""),
        *[("", again, r"\fi \boxed{5}") for again in (r"\if ", r"\iffalse ")],
        ("", "<s>5</s>", ""),
    ],
)
def test_extraction_is_linear_in_hostile_texts(start: str, again: str, end: str) -> None:
    assert growth(lambda times: extract(start + again * times + end), 700_000 // len(again)) < LINEAR


@pytest.mark.parametrize("text", table(__file__, "short_ways"))
def test_the_short_way_finds_what_the_long_way_finds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = extract(text)
    monkeypatch.setattr(sys.modules["turntree.rewards.reading.extract"], "lone_number", lambda text: None)
    assert extract(text) == short
