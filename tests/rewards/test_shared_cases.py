"""Accuracy on labelled cases and real responses that are not part of the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shared_cases import shared_rows

from turntree.rewards import Status, score_batch

DATA = Path(os.environ.get("TURNTREE_DATA") or Path(__file__).resolve().parents[2].parent / "shared") / "data"


def accuracy(name: str) -> float:
    path = DATA / name
    if not path.exists():
        path = DATA.parent / name
    if not path.exists():
        pytest.skip(f"{name} is not there; set TURNTREE_DATA to the folder that holds data/{name}")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scores = score_batch([row["prediction"] for row in rows], [row["gold"] for row in rows])
    return sum(score.correct is row["label"] for score, row in zip(scores, rows, strict=True)) / len(rows)


@pytest.mark.parametrize("name", ["reward_cases_dev.jsonl", "real_cot_dev.jsonl"])
def test_labelled_cases_are_judged_as_labelled(name: str) -> None:
    assert accuracy(name) >= 0.98


def test_relations_of_complex_numbers_crash_nothing() -> None:
    rows = [row["prediction"].partition(" gold ")[2] for row in shared_rows("env_cases_3.jsonl", "score_batch")]
    pairs = [row.split(" answer ") for row in rows if row]
    scores = score_batch([rf"\boxed{{{answer}}}" for _, answer in pairs], [gold for gold, _ in pairs])
    assert [pair for pair, score in zip(pairs, scores, strict=True) if score.status is Status.CRASHED] == []
