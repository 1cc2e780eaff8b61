from __future__ import annotations

import json

import pytest
from benchmark_modules import benchmark_module
from recorded_run import a_comparison, write_run

pytest.importorskip("verl")

demo = benchmark_module("demo")


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Replaces what takes minutes; collects its calls."""
    calls = []

    def train(config, overrides):
        calls.append("training")
        write_run(tmp_path / "0" / "run", tokenizer=False)
        return 0

    monkeypatch.setattr(demo, "warm_started_policy", lambda *, seed: tmp_path / "policy")
    monkeypatch.setattr(demo, "compose", lambda config, overrides: overrides)
    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "compare", lambda composition: calls.append("comparison") or a_comparison())
    return calls


def test_a_seed_is_made_part_by_part_and_what_is_there_is_kept(made, tmp_path):
    folder = tmp_path / "0"
    assert next(demo.parts(folder, 0, 3)) == "warm start"
    assert demo.row(folder, 0) is None
    assert next(demo.parts(folder, 0, 3)) == "training"
    assert list(demo.parts(folder, 0, 3)) == ["comparison"]
    assert list(demo.parts(folder, 0, 3)) == []
    assert made == ["training", "comparison"]
    row = demo.row(folder, 0)
    assert (row["first"], row["last"], row["equal"], row["episodes"]) == (0.5, 0.5, 12, 12)
    assert row["passes last third"] == [2.0, 2.0, 2.0]
    assert row["seconds last third"] == [1.5, 1.5, 1.5]
    assert json.loads(json.dumps(row)) == row


def test_a_training_that_failed_is_made_again(made, tmp_path, monkeypatch):
    folder = tmp_path / "0"
    making = demo.parts(folder, 0, 3)
    next(making)
    monkeypatch.setattr(demo, "train", lambda config, overrides: 1)
    with pytest.raises(RuntimeError, match="seed 0: the training ended with status 1"):
        next(making)
    assert "training" not in json.loads((folder / "minutes.json").read_text())


def test_a_success_that_rises_and_falls_again_has_both_told():
    risen = demo.learning([0.4] * 10 + [0.8] * 28 + [0.75] * 10)
    assert risen == {"first": 0.4, "last": 0.75, "rise": 0.35, "fall": 0.05}
    assert demo.learning([0.4] * 10 + [0.8] * 20)["fall"] == 0
