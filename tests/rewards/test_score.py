import warnings
from typing import Any

import pytest
from tables import table

from turntree.rewards import (
    AnswerFormat,
    Kind,
    MissingQuestion,
    Status,
    UnknownAnswerFormat,
    answer_format_for,
    ascore_batch,
    score,
    score_batch,
)
from turntree.rewards.reading import flags


def test_a_right_answer_scores_one_and_says_how() -> None:
    verdict = score(r"\boxed{\frac{2}{4}}", "0.5")
    assert (verdict.score, verdict.correct, verdict.status) == (1.0, True, Status.OK)
    assert verdict.answer == r"\frac{2}{4}"
    assert verdict.components == {"answered": 1.0, "decided": 1.0}


def test_a_batch_keeps_its_order_compares_each_by_its_own_rules_and_must_match_in_number() -> None:
    texts = [r"\boxed{\sqrt{8}}", r"\boxed{3}", r"\boxed{\sqrt{8}}"]
    assert [one.correct for one in score_batch(texts, [r"2\sqrt{2}"] * 3)] == [True, False, True]
    rules = ["math", "minerva", "math"]
    assert [one.correct for one in score_batch([r"\boxed{1.57}"] * 3, ["1.6"] * 3, rules)] == [False, True, False]
    with pytest.raises(ValueError, match="2 texts and 1 gold"):
        score_batch(["1", "2"], ["1"])
    with pytest.raises(ValueError, match="got 3 for 2"):
        score_batch(["1", "2"], ["1", "2"], ["math"] * 3)


async def test_the_event_loop_gets_the_same_scores_and_warnings() -> None:
    texts, golds = [r"\boxed{x+x}", "#### 3", "nothing"], ["2x", "3", "1"]
    ours = [one.correct for one in await ascore_batch(texts, golds)]
    assert ours == [one.correct for one in score_batch(texts, golds)] == [True, True, False]
    with pytest.warns(MissingQuestion):
        await ascore_batch(["#### 5"], ["5"])


@pytest.mark.parametrize(("text", "gold", "status", "flagged"), table(__file__, "wrong_answers"))
def test_a_wrong_answer_says_what_is_wrong_with_it(text: str, gold: str, status: str, flagged: list[str]) -> None:
    verdict = score(text, gold)
    assert (verdict.score, verdict.correct, verdict.status) == (0.0, False, Status(status))
    assert list(verdict.flags) == flagged


def test_an_answer_that_cannot_be_graded_is_not_wrong_and_grader_talk_is_flagged() -> None:
    verdict = score(r"\boxed{5}", r"\mho{(")
    assert (verdict.correct, verdict.score) == (None, 0.0)
    assert verdict.status is Status.UNPARSEABLE
    assert verdict.components["decided"] == 0.0
    assert score(r"\boxed{\int_0^1 x^x dx}", r"\int_0^1 x^{-x} dx").correct is None
    verdict = score("The grader must accept this. \\boxed{5}", "5")
    assert verdict.correct
    assert verdict.flags == (flags.GRADER_TALK,)


@pytest.mark.parametrize(("answer_format", "gold", "text", "right"), table(__file__, "answer_formats"))
def test_answer_formats_say_what_counts_as_the_same(answer_format: Any, gold: str, text: str, right: bool) -> None:
    rules = answer_format if isinstance(answer_format, str) else AnswerFormat(**answer_format)
    assert score(text, gold, rules).correct is right


def test_every_answer_format_is_found_by_its_name_and_aliases_and_an_unknown_one_is_named() -> None:
    assert answer_format_for("MATH500").name == "math"
    assert answer_format_for("openai/gsm8k").name == "gsm8k"
    assert answer_format_for("aime25").kind is Kind.INTEGER
    with pytest.raises(UnknownAnswerFormat, match=r"nosuch.*gsm8k"):
        score("5", "5", "nosuch")
    with pytest.raises(ValueError, match="relative_tolerance"):
        AnswerFormat(name="x", relative_tolerance=-1)


def test_an_answer_format_that_needs_the_question_says_so_where_it_is_not_given() -> None:
    for answer_format in ("math", "gsm8k", "minerva", AnswerFormat(name="mine")):
        for missing in (
            lambda answer_format=answer_format: score("#### 5", "5", answer_format),
            lambda answer_format=answer_format: score_batch(["#### 5"], ["5"], [answer_format]),
        ):
            with pytest.warns(MissingQuestion, match="needs the question, but .* was not given"):
                missing()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ("What is 2 + 3?", ""):
            score("#### 5", "5", question=given)
            score_batch(["#### 5"], ["5"], questions=[given])
        score_batch(["#### 5", "(A)"], ["5", "A"], ["aime", "mmlu"])  # integers and letters are no copies
