"""Answers judged with their question: what is not paid, what must be, and what only the gold answer leaves open."""

from __future__ import annotations

from pathlib import Path

from turntree.rewards import score_batch

CASES = Path(__file__).with_name("question_cases.txt")
_LABELS = {"T": True, "F": False, "U": None}


def read_cases() -> list[tuple[bool | None, str, str, str, str]]:
    """Label, text, gold answer, contract and question of each case."""
    cases = []
    for line in CASES.read_text().splitlines():
        if line.startswith("? "):
            question, gold, *contract = line[2:].split(" ;; ")
        elif line and not line.startswith("#"):
            label, _, answer = line.partition(" ")
            text = answer[2:] if answer.startswith(">>") else rf"So it is \boxed{{{answer}}}"
            cases.append((_LABELS[label], text, gold, (contract or ["math"])[0], question))
    return cases


def test_what_is_not_earned_is_not_paid_and_what_is_earned_is() -> None:
    labels, texts, golds, contracts, questions = zip(*read_cases(), strict=True)
    assert min(labels.count(False) // 200, labels.count(True) // 100) >= 1
    scores = score_batch(texts, golds, contracts, questions=questions)
    wrong = [
        (label, score.correct, text, gold, question)
        for label, score, text, gold, question in zip(labels, scores, texts, golds, questions, strict=True)
        if score.correct is not label
    ]
    assert not wrong
