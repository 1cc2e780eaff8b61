from pathlib import Path

import pytest

from turntree.agents.errors import RecordError
from turntree.agents.viewer.chart import curves
from turntree.agents.viewer.source import Source
from turntree.agents.viewer.state_turns import state_turns


def test_a_run_is_its_episodes_in_order_and_whole_lines_of_figures_with_their_curves(source: Source) -> None:
    assert [record.labels["step"] for record in source.records()] == [1] * 10 + [2] * 10 + [3] * 10 + [4] * 10
    assert [row.step for row in source.metrics] == [1, 2, 3, 4]  # the fifth line is still being written
    drawn = {curve.title: curve.svg for curve in curves(source)}
    assert set(drawn) == {"mean reward", "seconds per step", "tokens per forward pass"}
    assert "each step, training step 4: 1<" in drawn["mean reward"]
    first = state_turns(source.records(), task=None, turn=0)
    assert (first.task, len(first.turns), first.all_turns) == ("adder/4", 40, 40)
    # Two of four kinds called the tool before the second turn, the others had ended.
    assert len(state_turns(source.records(), task="adder/4", turn=1).turns) == 20


def test_steps_that_were_played_again_are_drawn_without_drafts_and_with_them(run: Path) -> None:
    lines = [f'{{"step": {n}, "plain": {{"seconds": 2}}, "speculative": {{"seconds": 1}}}}\n' for n in (1, 3)]
    (run / "comparison.jsonl").write_text("".join(lines))
    chart = curves(Source.open(run))[-1]
    assert chart.title.startswith("engine seconds of replayed steps")
    for line in ("without drafts, training step 3: 2", "with drafts, training step 3: 1"):
        assert f">{line}<" in chart.svg
    (run / "comparison.jsonl").write_text(lines[0])
    assert len(curves(Source.open(run))) == 3, "one step is no curve"


def test_a_single_file_of_episodes_is_a_source_without_figures(run: Path) -> None:
    source = Source.open(run / "episodes" / "step_000002.jsonl")
    assert sum(1 for _ in source.records()) == 10
    assert curves(source) == []
    source.path.rename(run.parent / "my_episodes.jsonl")
    assert sum(1 for _ in Source.open(run.parent).records()) == 10


STEPS = ["nonsense", "[1]", "{}", *(f'{{"step": {step}}}' for step in ("true", "1.5", '"2"', "1e400", "NaN", 10**30))]


@pytest.mark.parametrize("line", [*STEPS, '{"step": 2, "seconds": ' + "[" * 10_000, '{"step": ' + "9" * 5000 + "}"])
def test_a_damaged_line_of_figures_is_named(run: Path, line: str) -> None:
    (run / "engine.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(RecordError, match=r"engine\.jsonl, line 2: .{,300}$"):
        Source.open(run)


def test_a_figure_that_is_no_number_is_named_and_one_that_is_infinite_left_out(run: Path) -> None:
    def titles(*seconds: str) -> list[str]:
        lines = [f'{{"step": {step}, "seconds": {one}}}\n' for step, one in enumerate(seconds)]
        (run / "engine.jsonl").write_text("".join(lines))
        return [curve.title for curve in curves(Source.open(run))]

    for wrong in ('"x"', "[1]", "true", "{}"):
        with pytest.raises(RecordError, match=r"engine\.jsonl, line 2: expected a number for 'seconds'"):
            titles("1", wrong)
    for infinite in ("NaN", "Infinity", "1e400", "-1e400", "1" + "0" * 400, "null"):
        assert "engine seconds per step" not in titles("1", infinite)
    assert "engine seconds per step" in titles("-1", "-2", "1e300")


def test_the_model_of_a_run_is_read_from_its_configuration(run: Path) -> None:
    (run / "config.yaml").write_text("actor_rollout_ref: {model: {path: models/policy}}\n")
    assert Source.open(run).model == "models/policy"
    (run / "config.yaml").write_text("actor_rollout_ref: {model: {path: '${a}${a}'}}\n")
    assert Source.open(run).model == ""
