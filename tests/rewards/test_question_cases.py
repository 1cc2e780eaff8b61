"""Answers judged with their question: what is not paid, what must be, and what only the gold answer leaves open."""

from __future__ import annotations

from question_cases import question_cases

from turntree.rewards import score_batch


def test_what_is_not_earned_is_not_paid_and_what_is_earned_is() -> None:
    cases = question_cases()
    labels = [case.label for case in cases]
    assert labels.count(False) >= 200
    assert labels.count(True) >= 100
    _, _, texts, golds, contracts, questions = zip(*cases, strict=True)
    scores = score_batch(texts, golds, contracts, questions=questions)
    assert not [(case, score) for case, score in zip(cases, scores, strict=True) if score.correct is not case.label]
