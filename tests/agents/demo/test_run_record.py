from __future__ import annotations

import pytest
from recorded_run import a_comparison, write_run

from turntree.agents.demo.run_record import read_run
from turntree.agents.errors import RecordError
from turntree.agents.verl.recording import RunFolder


def test_metrics_and_counters_meet_by_step(tmp_path):
    points = read_run(write_run(tmp_path, steps=2)).points
    assert [(p.step, round(p.success, 2), p.tokens_per_step) for p in points] == [(1, 0.33, 2.0), (2, 0.67, 3.0)]


def test_a_run_without_counters_has_no_tokens_per_step(tmp_path):
    write_run(tmp_path)
    RunFolder(tmp_path).engine.unlink()
    assert {point.tokens_per_step for point in read_run(tmp_path).points} == {None}


def test_the_longest_episode_of_the_last_step_is_shown(tmp_path):
    run = read_run(write_run(tmp_path, steps=2))
    assert run.episode_step == 2
    assert len(run.episode.turns) == 3


def test_the_tree_is_of_the_state_at_which_most_different_things_were_said(tmp_path):
    tree = read_run(write_run(tmp_path, steps=2)).tree
    assert tree.prompt.endswith("calculator(3*4)<|end|><|tool|>12<|end|><|assistant|>")
    assert tree.root.count == 6, "three episodes in each of two steps"
    assert len(tree.root.children) == 2


def test_without_the_tokenizer_tokens_are_numbers(tmp_path, caplog):
    run = read_run(write_run(tmp_path, tokenizer=False))
    assert run.decode(7) == "⟨7⟩"
    assert "tokenizer cannot be read" in caplog.text


def test_a_comparison_is_read_where_there_is_one(tmp_path):
    write_run(tmp_path)
    assert read_run(tmp_path).comparison is None
    a_comparison().save(tmp_path / "comparison.json")
    assert read_run(tmp_path).comparison == a_comparison()


def test_a_run_without_episodes_still_has_its_curves(tmp_path):
    write_run(tmp_path, scripts=())
    for path in tmp_path.glob("episodes/*"):
        path.unlink()
    run = read_run(tmp_path)
    assert (run.episode, run.tree, run.episode_step) == (None, None, 0)
    assert run.points


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics.jsonl is missing"):
        read_run(tmp_path)


def test_a_damaged_line_names_file_and_line(tmp_path):
    write_run(tmp_path, steps=1)
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.write("{cut off")
    with pytest.raises(RecordError, match=r"metrics.jsonl, line 2: .*'\{cut off'"):
        read_run(tmp_path)


def test_a_run_that_never_trained_points_at_its_log(tmp_path):
    write_run(tmp_path)
    RunFolder(tmp_path).metrics.write_text('{"step": 0, "data": {"val/score": 0.1}}\n')
    with pytest.raises(RecordError, match=r"no training step; look at .*train.log"):
        read_run(tmp_path)
