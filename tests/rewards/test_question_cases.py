import json

import pytest
from playing import published
from question_cases import question_cases

from turntree.rewards import score_batch


def test_what_is_not_earned_is_not_paid_and_what_is_earned_is() -> None:
    cases = question_cases()
    labels = [case.label for case in cases]
    assert labels.count(False) >= 200
    assert labels.count(True) >= 100
    _, _, texts, golds, answer_formats, questions = zip(*cases, strict=True)
    scores = score_batch(texts, golds, answer_formats, questions=questions)
    assert not [(case, score) for case, score in zip(cases, scores, strict=True) if score.correct is not case.label]


def test_without_their_question_copies_are_paid() -> None:
    own = [case for case in question_cases() if case.group.startswith("2: the question given back")]
    copies = [case for case in own if not case.label]
    scores = score_batch([case.text for case in copies], [case.gold for case in copies])
    assert sum(score.correct is True for score in scores) > 0.9 * len(copies)


@pytest.mark.parametrize("name", ["math500", "olympiadbench", "minerva_math"])
def test_gold_answers_are_paid_with_their_questions_and_copies_are_not(name: str) -> None:
    (file,) = published(name).glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    golds, questions = [str(row["answer"]) for row in rows], [row["question"] for row in rows]
    scores = score_batch([rf"\boxed{{{gold}}}" for gold in golds], golds, questions=questions)
    assert not [(gold, score) for gold, score in zip(golds, scores, strict=True) if score.correct is not True]
    longest = [max(question.split("$")[1::2], key=len, default="?") for question in questions]
    copies = score_batch([rf"\boxed{{{formula}}}" for formula in longest], golds, questions=questions)
    assert sum(score.correct is not False for score in copies) <= max(2, 0.004 * len(rows))
