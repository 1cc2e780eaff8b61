import json
import sys
from pathlib import Path

import pytest
from benchmark_modules import benchmark_module
from recorded_run import a_comparison, write_run

pytest.importorskip("verl")

demo = benchmark_module("demo")


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Replace the slow parts and collect their calls."""
    calls = []

    def train(config, overrides):
        calls.append("training")
        run = next(each for each in overrides if each.startswith("turntree.run_dir=")).split("'")[1]
        write_run(Path(run), tokenizer=False)
        return 0

    def warm_start(*, seed, on_step):
        on_step(1, 0.5)
        return tmp_path / "policy"

    monkeypatch.setattr(demo, "warm_started_policy", warm_start)
    monkeypatch.setattr(demo, "compose", lambda config, overrides: overrides)
    monkeypatch.setattr(demo, "train", train)

    def compare(composition, *, every):
        assert every == 1, "each step whose weights are there"
        calls.append("comparison")
        return a_comparison()

    monkeypatch.setattr(demo, "compare", compare)
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
    for part in ("all", "first third", "last third"):
        assert row[f"passes {part}"] == [2.0, 2.0, 2.0]
        assert row[f"engine {part}"] == [1.5, 1.5, 1.5]
    assert set(row["seconds"]) == {"warm start", "training", "comparison"}
    assert None not in row["seconds"].values()
    assert json.loads(json.dumps(row)) == row


def test_a_training_that_failed_is_made_again(made, tmp_path, monkeypatch):
    folder = tmp_path / "0"
    making = demo.parts(folder, 0, 3)
    next(making)
    monkeypatch.setattr(demo, "train", lambda config, overrides: 1)
    with pytest.raises(RuntimeError, match="seed 0: the training ended with status 1"):
        next(making)
    assert "training" not in json.loads((folder / "seconds.json").read_text())


def test_seconds_are_of_whole_parts_alone(made, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "warm_started_policy", lambda *, seed, on_step: tmp_path / "policy")
    (tmp_path / "0" / "run").mkdir(parents=True)  # of a training that was killed
    list(demo.parts(tmp_path / "0", 0, 3))
    seconds = demo.row(tmp_path / "0", 0)["seconds"]
    assert (seconds["warm start"], seconds["training"]) == (None, None)
    assert seconds["comparison"] is not None


def test_what_is_killed_in_its_second_seed_has_written_the_first_and_goes_on(made, tmp_path, monkeypatch, capsys):
    at = ["--runs", str(tmp_path / "runs"), "--json", str(tmp_path / "demo.json"), "--seeds", "0", "1", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *at])
    compare = demo.compare

    def killed(composition, *, every):
        if made.count("comparison") == 1:
            raise KeyboardInterrupt
        return compare(composition, every=every)

    with monkeypatch.context() as patch:
        patch.setattr(demo, "compare", killed)
        with pytest.raises(KeyboardInterrupt):
            demo.main()
    assert [seed["seed"] for seed in json.loads((tmp_path / "demo.json").read_text())["seeds"]] == [0]
    demo.main()
    assert [seed["seed"] for seed in json.loads((tmp_path / "demo.json").read_text())["seeds"]] == [0, 1]
    assert made == ["training", "comparison", "training", "comparison"]
    assert "the demo over seeds" in capsys.readouterr().out


def test_a_success_that_rises_and_falls_again_has_both_told():
    risen = demo.learning([0.4] * 10 + [0.8] * 28 + [0.75] * 10)
    assert risen == {"first": 0.4, "best": 0.8, "last": 0.75, "rise": 0.35, "fall": 0.05}
    assert demo.learning([0.4] * 10 + [0.8] * 20)["fall"] == 0
