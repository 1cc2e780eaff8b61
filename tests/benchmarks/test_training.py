import math
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import benchmark_module

pytest.importorskip("verl", reason='training needs verl: pip install "turntree[train]"')

from turntree.agents.verl.launch import StepReport

training = benchmark_module("training")


def report(step: int, **engine: float) -> StepReport:
    metrics = {
        "timing_s/step": 10.0 * step,
        "timing_s/gen": 4.0 * step,
        "timing_s/update_actor": 3.0,
        "timing_s/update_critic": 1.0,
        "critic/score/mean": 0.5,
    }
    return StepReport(step=step, metrics=metrics, engine=engine)


def test_a_step_is_split_into_its_phases_and_an_epoch_is_the_mean_of_its_steps() -> None:
    row = training.of_step(report(1, forward_passes=4, tokens=20, tokens_per_step=2.5, seconds=3.0))
    assert (row["rollout"], row["update"], row["weights"], row["rollout_share"]) == (4.0, 4.0, 0.0, 0.4)
    assert (row["tokens_per_pass"], row["tokens_per_step"], row["engine"]) == (5.0, 2.5, 3.0)
    row = training.of_step(report(1))
    assert row["step"] == 10.0
    assert math.isnan(row["tokens_per_pass"])
    epochs = training.by_epoch([report(step) for step in range(1, 5)], 2)
    assert [row["step"] for row in epochs] == [15.0, 35.0]


def test_finished_ways_are_not_run_again_and_other_settings_are_refused(monkeypatch, tmp_path) -> None:
    asked: list[str] = []

    def run(args: Any, way: str, model: str, folder: Path) -> list[StepReport]:
        asked.append(way)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [report(step) for step in range(1, 5)]

    monkeypatch.setattr(training, "run", run)
    words = ["--model", "m", "--ways", "none", "tree", "--epochs", "2", "--tasks", "4", "--batch", "2"]
    words += ["--out", str(tmp_path / "out.json")]
    with pytest.raises(KeyboardInterrupt):
        training.main(words)
    training.main(words)
    assert asked == ["none", "tree", "tree"]
    with pytest.raises(SystemExit, match="other settings"):
        training.main([*words, "--samples", "3"])


def test_every_way_is_a_list_of_speculations_that_exist() -> None:
    from importlib import resources

    folder = resources.files("turntree.configs").joinpath("speculation")
    known = {entry.name.removesuffix(".yaml") for entry in folder.iterdir()}
    assert {name for names in training.WAYS.values() for name in names} <= known
