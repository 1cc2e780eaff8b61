"""A step's row says what was sampled in it, and there is none that would only say that nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.monitors import Monitors
from turntree.agents.verl.launch import StepReport
from turntree.agents.verl.recording import RunFolder
from turntree.agents.verl.settings import RunSettings
from turntree.agents.verl.step_books import StepBooks


def test_a_replica_that_was_started_again_knows_nothing_of_the_step_before_it(tmp_path: Path) -> None:
    books = StepBooks(RunSettings(run_dir=str(tmp_path)), 0, Monitors())
    for step, sampled in ((3, 0), (3, 0), (4, 8)):  # it is given the weights by hand, then by the trainer
        books.close_step(step, EngineStats(tokens=2 * sampled, verify_steps=sampled))
    (row,) = map(json.loads, RunFolder(tmp_path).engine.read_text().splitlines())
    assert (row["step"], row["tokens_per_step"]) == (4, 2.0)


def test_without_the_engines_row_a_step_has_the_figures_of_its_episodes() -> None:
    assert StepReport(step=1, metrics={"turntree/tokens_per_step": 1.5}, engine={}).tokens_per_step == 1.5
    both = StepReport(step=1, metrics={"turntree/tokens_per_step": 1.5}, engine={"tokens_per_step": 2.0})
    assert both.tokens_per_step == 2.0
    assert str(StepReport(step=1, metrics={}, engine={}).tokens_per_step) == "nan"
