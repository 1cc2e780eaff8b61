import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[1] / "rewards" / "question_cases.txt"
#: kinds of reported cases whose reason is the question
_ASKED = ("convert_form", "number_given_back", "question_form", "question_number")
_LABELS = {"T": True, "F": False, "U": None}


class Case(NamedTuple):
    group: str  #: heading of the file
    label: bool | None  #: whether the answer is paid; ``None`` if it cannot be graded because of the gold answer
    text: str
    gold: str
    answer_format: str
    question: str


def question_cases() -> list[Case]:
    cases, group = [], ""
    for line in FILE.read_text().splitlines():
        if line.startswith("? "):
            question, gold, *answer_format = line[2:].split(" ;; ")
        elif line.startswith("#"):
            group = line[2:]
        elif line:
            label, _, answer = line.partition(" ")
            text = answer[2:] if answer.startswith(">>") else rf"So it is \boxed{{{answer}}}"
            cases.append(Case(group, _LABELS[label], text, gold, (answer_format or ["math"])[0], question))
    return cases


def reported_cases(path: Path) -> list[Case]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Case(
            group=row["kind"],
            label=bool(row["right"]),
            text=row["prediction"],
            gold=row["gold"],
            answer_format=row["contract"],
            question=row["why"] if row["kind"] in _ASKED else "",
        )
        for row in rows
        if not row["contract"].startswith("turntree/")  # graded by an environment
    ]
