from pathlib import Path
from typing import NamedTuple

import pytest

from turntree.rewards import Score, score_batch


class Case(NamedTuple):
    right: bool
    gold: str
    text: str


def read_cases() -> list[Case]:
    cases = []
    texts = [(Path(__file__).parent / name).read_text() for name in ("answer_cases.txt", "formula_cases.txt")]
    for line in "\n".join(texts).splitlines():
        if line.strip() and not line.startswith("#"):
            verdict, gold, answer = line.split(" ;; ")
            text = answer[2:].replace("\\n", "\n") if answer.startswith(">>") else f"\\boxed{{{answer}}}"
            cases.append(Case(verdict == "T", gold, text))
    return cases


CASES = read_cases()


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    return score_batch([case.text for case in CASES], [case.gold for case in CASES])


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: f"{CASES[index].gold} <- {CASES[index].text}")
def test_an_answer_gets_the_verdict_of_the_table(index: int, scores: list[Score]) -> None:
    assert scores[index].correct is CASES[index].right, scores[index]


def test_the_table_holds_both_verdicts_in_number() -> None:
    right = sum(case.right for case in CASES)
    assert right > 150
    assert len(CASES) - right > 150
