from __future__ import annotations

from pathlib import Path

import pytest

from turntree.agents.errors import RecordError
from turntree.agents.viewer.curves import curves
from turntree.agents.viewer.source import Source
from turntree.agents.viewer.state_turns import state_turns


def test_a_run_is_its_episodes_in_order_and_whole_lines_of_figures(source: Source) -> None:
    assert [record.labels["step"] for record in source.records()] == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10
    assert [row["step"] for row in source.metrics] == [1, 2, 3, 4]  # the fifth line is still being written


def test_curves_are_drawn_of_what_was_recorded_alone(source: Source) -> None:
    drawn = {curve.title: curve.svg for curve in curves(source)}
    assert set(drawn) == {"mean reward", "seconds of a step", "tokens per verify step"}
    assert "each step, training step 4: 1<" in drawn["mean reward"]


def test_a_single_file_of_episodes_is_a_source_without_figures(run: Path) -> None:
    source = Source.open(run / "episodes" / "step_000002.jsonl")
    assert sum(1 for _ in source.records()) == 10
    assert curves(source) == []


def test_a_damaged_line_of_figures_is_named(run: Path) -> None:
    (run / "engine.jsonl").write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(RecordError, match=r"engine\.jsonl, line 2"):
        Source.open(run)


def test_the_model_of_a_run_is_read_from_its_configuration(run: Path) -> None:
    (run / "config.yaml").write_text("actor_rollout_ref: {model: {path: models/policy}}\n")
    assert Source.open(run).model == "models/policy"


def test_the_turns_of_the_most_frequent_state_are_found(source: Source) -> None:
    first = state_turns(source.records(), task=None, turn=0)
    assert (first.task, len(first.turns), first.all_turns) == ("adder/4", 40, 40)
    # Two of four kinds called the tool before the second turn, the others had ended.
    assert len(state_turns(source.records(), task="adder/4", turn=1).turns) == 20
