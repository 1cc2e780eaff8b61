"""A step's row says what was sampled in it, and there is none that would only say that nothing is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.monitors import Monitors
from turntree.agents.verl.launch import StepReport
from turntree.agents.verl.recording import RunFolder
from turntree.agents.verl.settings import RunSettings
from turntree.agents.verl.step_books import StepBooks


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.engine.read_text().splitlines()]


def books(tmp_path: Path) -> tuple[StepBooks, RunFolder]:
    return StepBooks(RunSettings(run_dir=str(tmp_path)), 0, Monitors()), RunFolder(tmp_path)


def test_a_row_is_what_was_counted_since_the_step_before(tmp_path: Path) -> None:
    kept, folder = books(tmp_path)
    for step in range(3):
        kept.close_step(step, EngineStats(tokens=step * (step + 9), verify_steps=4 * step))
    found = [(row["step"], row["tokens"], row["tokens_per_step"]) for row in rows(folder)]
    assert found == [(1, 10, 2.5), (2, 12, 3.0)]


def test_a_replica_that_was_started_again_knows_nothing_of_the_step_before_it(tmp_path: Path) -> None:
    kept, folder = books(tmp_path)
    for step, sampled in ((3, 0), (3, 0), (4, 8)):  # it is given the weights by hand, then by the trainer
        kept.close_step(step, EngineStats(tokens=2 * sampled, verify_steps=sampled))
    assert [(row["step"], row["tokens_per_step"]) for row in rows(folder)] == [(4, 2.0)]


def test_without_the_engines_row_a_step_has_the_figures_of_its_episodes() -> None:
    assert StepReport(step=1, metrics={"turntree/tokens_per_step": 1.5}, engine={}).tokens_per_step == 1.5
    both = StepReport(step=1, metrics={"turntree/tokens_per_step": 1.5}, engine={"tokens_per_step": 2.0})
    assert both.tokens_per_step == 2.0
    assert str(StepReport(step=1, metrics={}, engine={}).tokens_per_step) == "nan"
