import json
from pathlib import Path

import pytest
from question_cases import Case, reported_cases
from shared_cases import DATA, shared_rows
from tables import table

from turntree.rewards import Status, score_batch

# Reported right answers that are refused: kind, formula, reason; at most ten.
REFUSED: list[list[str]] = table(__file__, "refused")


def shared(name: str) -> Path:
    for path in (DATA / name, DATA.parent / name):
        if path.exists():
            return path
    pytest.skip(f"{name} is not there; set TURNTREE_DATA to the folder that holds data/{name}")


def accuracy(name: str) -> float:
    rows = [json.loads(line) for line in shared(name).read_text().splitlines()]
    scores = score_batch([row["prediction"] for row in rows], [row["gold"] for row in rows])
    return sum(score.correct is row["label"] for score, row in zip(scores, rows, strict=True)) / len(rows)


@pytest.mark.parametrize("name", ["reward_cases_dev.jsonl", "real_cot_dev.jsonl"])
def test_labelled_cases_are_graded_as_labelled(name: str) -> None:
    assert accuracy(name) >= 0.98


def test_relations_of_complex_numbers_crash_nothing() -> None:
    rows = [row["prediction"].partition(" gold ")[2] for row in shared_rows("env_cases_3.jsonl", "score_batch")]
    pairs = [row.split(" answer ") for row in rows if row]
    scores = score_batch([rf"\boxed{{{answer}}}" for _, answer in pairs], [gold for gold, _ in pairs])
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score.status is Status.CRASHED] == []


def paid(cases: list[Case], questions: list[str]) -> list[bool]:
    _, _, texts, golds, answer_formats, _ = zip(*cases, strict=True)
    return [one.correct is True for one in score_batch(texts, golds, answer_formats, questions=questions)]


def test_what_was_reported_is_never_paid_although_wrong_and_seldom_refused_although_right() -> None:
    cases = reported_cases(shared("reward_cases_3.jsonl"))
    found = list(zip(cases, paid(cases, [case.question for case in cases]), strict=True))
    assert not [case for case, is_paid in found if is_paid and not case.label]
    refused = [case for case, is_paid in found if case.label and not is_paid]
    known = [(kind, formula) for kind, formula, _ in REFUSED]
    assert [case for case in refused if not any(case.group == kind and one in case.text for kind, one in known)] == []
    assert len(refused) <= 10


def test_without_their_questions_some_of_them_would_be_paid_although_wrong() -> None:
    wrong = [case for case in reported_cases(shared("reward_cases_3.jsonl")) if case.question and not case.label]
    assert sum(paid(wrong, [""] * len(wrong))) > 0.3 * len(wrong)
