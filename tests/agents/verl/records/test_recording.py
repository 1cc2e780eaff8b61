import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from real_training import read_lines
from recording_engine import RecordingEngine
from safetensors.torch import load_file

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter, read_records
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.launch import StepReport
from turntree.agents.verl.records.recording import EpisodeRecorder, RunFolder, append_line, save_weights
from turntree.agents.verl.records.step_counters import StepCounters
from turntree.agents.verl.run.resume import checkpoints_of, join_metrics, keep_records, resume_path, resumed_step

EPISODE = Episode(env_id="e", task=None, seed=1, messages=(), turns=(), stop_reason=StopReason.FAILURE, failure="broke")


def test_episodes_go_to_the_file_of_their_step(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = EpisodeRecorder(folder)
    for step, index in ((1, 4), (1, 5), (2, 4), (1, 6)):
        recorder.write(EPISODE, step=step, index=index, session=0, seed=9)
    first = list(read_records(tmp_path / "episodes" / "step_000001.jsonl"))
    assert [record.labels for record in first] == [
        {"step": 1, "index": index, "session": 0, "seed": 9} for index in (4, 5, 6)
    ]
    assert first[0].episode == EPISODE
    assert len(list(read_records(folder.episodes(2)))) == 1


def left_open(act: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        act()
        gc.collect()
    return [str(one.message) for one in caught if one.category is ResourceWarning]


def test_a_recorder_leaves_no_file_open(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert left_open(lambda: EpisodeRecorder(folder).write(EPISODE, step=1, index=0, session=0, seed=0)) == []
    assert "control.jsonl" in str(left_open(lambda: EpisodeWriter(tmp_path / "control.jsonl")))


def test_clearing_a_folder_keeps_what_a_run_does_not_write(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    append_line(folder.engine, {"step": 1})
    append_line(tmp_path / "comparison.jsonl", {"step": 1})
    EpisodeRecorder(folder).write(EPISODE, step=1, index=0, session=0, seed=0)
    save_weights(folder.weights(1), [("w", torch.zeros(2))])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "episodes" / "mine.jsonl").write_text("")
    folder.clear()
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["mine.jsonl", "notes.txt"]


def test_weights_are_saved_whole_even_if_two_names_share_them(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    path = tmp_path / "weights" / "w.safetensors"
    save_weights(path, [("a", shared), ("b", shared), ("c", torch.arange(6.0).view(2, 3).t())])
    read = load_file(path)
    assert torch.equal(read["a"], read["b"])
    assert torch.equal(read["c"], torch.arange(6.0).view(2, 3).t())
    assert list(path.parent.iterdir()) == [path]


def test_a_replica_that_was_started_again_knows_nothing_of_the_step_before_it(tmp_path: Path) -> None:
    books = StepCounters(RunSettings(run_dir=str(tmp_path)), 0, DraftedTurns(RecordingEngine()))
    for step, sampled in ((3, 0), (3, 0), (4, 8)):  # it is given the weights by hand, then by the trainer
        books.close_step(step, {"tokens": 2 * sampled, "verify_steps": sampled})
    (row,) = read_lines(RunFolder(tmp_path).engine)
    assert (row["step"], row["tokens_per_forward_pass"]) == (4, 2.0)
    assert (
        StepReport(step=1, metrics={"turntree/tokens_per_forward_pass": 1.5}, engine={}).tokens_per_forward_pass == 1.5
    )
    both = StepReport(
        step=1, metrics={"turntree/tokens_per_forward_pass": 1.5}, engine={"tokens_per_forward_pass": 2.0}
    )
    assert both.tokens_per_forward_pass == 2.0
    assert str(StepReport(step=1, metrics={}, engine={}).tokens_per_forward_pass) == "nan"


def trainer(mode: str, path: str | None = None) -> dict[str, Any]:
    return {"resume_mode": mode, "resume_from_path": path}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    # A run that was killed in its third step, with a checkpoint of the second.
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        append_line(folder.metrics, {"step": step, "data": {"score": step}})
        append_line(folder.engine, {"step": step})
        append_line(folder.episodes(step), {"step": step, "episode": {"turns": []}})
        folder.weights(step).parent.mkdir(exist_ok=True)
        folder.weights(step).write_bytes(b"w")
    with folder.engine.open("a") as file:
        file.write('{"step": 4, "tok')
    (folder.checkpoints / "global_step_2").mkdir(parents=True)
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    return folder


def steps(path: Path) -> list[int]:
    return [row["step"] for row in read_lines(path)]


def test_a_run_resumes_where_its_last_checkpoint_was_made(folder: RunFolder) -> None:
    assert resumed_step(trainer("auto"), folder) == 2
    assert resumed_step(trainer("disable"), folder) == 0
    assert checkpoints_of(trainer("auto"), folder) == folder.checkpoints


def test_a_run_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    assert resumed_step(trainer("auto"), RunFolder(tmp_path)) == 0


def test_a_run_resumes_from_the_checkpoint_that_is_named(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.checkpoints)
    named = trainer("resume_path", "global_step_2")
    assert resumed_step(named, RunFolder(folder.root / "other")) == 2
    assert resume_path(named) == str(folder.checkpoints / "global_step_2")
    assert checkpoints_of(named, RunFolder(folder.root / "other")) == folder.checkpoints


@pytest.mark.parametrize("path", ["global_step_9", "step_2"])
def test_a_checkpoint_that_is_not_there_is_refused(folder: RunFolder, path: str) -> None:
    (folder.checkpoints / "step_2").mkdir()
    with pytest.raises(ConfigError, match="folder global_step_N of a checkpoint"):
        resumed_step(trainer("resume_path", str(folder.checkpoints / path)), folder)


def test_a_path_that_is_not_given_is_asked_for_and_a_damaged_note_of_the_latest_refused(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"needs trainer\.resume_from_path=FOLDER, got None"):
        resume_path(trainer("resume_path"))
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("\0\0")
    with pytest.raises(ConfigError, match=r"latest_checkpointed_iteration\.txt should hold the number of a step"):
        resumed_step(trainer("auto"), folder)


def test_records_of_later_steps_go_and_those_of_earlier_ones_stay_though_the_trainer_empties_a_file(folder, caplog):
    keep_records(folder, 2)
    assert steps(folder.engine) == [1, 2]
    assert [folder.episodes(step).exists() for step in (1, 2, 3)] == [True, True, False]
    assert [folder.weights(step).exists() for step in (1, 2, 3)] == [True, True, False]
    folder.metrics.write_text('{"step": 3, "data": {}}\n')
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2, 3]
    assert not caplog.records
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2, 3]


def test_a_step_that_was_killed_before_verl_logged_it_is_named(folder: RunFolder, caplog: Any) -> None:
    folder.metrics.write_text('{"step": 1, "data": {}}\n')
    keep_records(folder, 2)
    assert "step 2 has no row in" in caplog.text


def test_metrics_are_a_table_at_the_end_with_a_row_a_step_and_a_column_a_metric(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [(0, {"val": 0.5}), (2, {"a": 1, "b": "x,y"}), (1, {"a": float("nan")}), (1, {"c": -2e-9})]
    lines = [json.dumps({"step": step, "data": data}) for step, data in rows]
    folder.metrics.write_text("\n".join([*lines, '{"step": 3, "da']))
    join_metrics(folder)
    assert folder.table.read_text() == 'step,a,b,c,val\n0,,,,0.5\n1,nan,,-2e-09,\n2,1,"x,y",,\n'
    keep_records(folder, 1)
    assert not folder.table.exists(), "it would have the steps that are played again"
    folder.metrics.write_text('{"step": 2, "data": {"a": 7}}\n')
    join_metrics(folder)
    assert folder.table.read_text().splitlines()[-1] == "2,7,,"
    folder.clear()
    assert not folder.table.exists()
    join_metrics(folder)
    assert not folder.table.exists()


def test_episodes_of_weights_that_the_resumed_run_never_has_go_too(folder: RunFolder) -> None:
    """Control: episodes that ended before the checkpoint."""

    def lines(step: int) -> list[list[int]]:
        rows = [json.loads(line) for line in folder.episodes(step).read_text().splitlines()]
        return [[turn["completion"]["weights_version"] for turn in row["episode"]["turns"]] for row in rows]

    begun = {1: [[0, 0], [1], [1, 3]], 2: [[1, 1]], 3: [[2]]}
    for step, episodes in begun.items():
        turns = [[{"completion": {"weights_version": version}} for version in versions] for versions in episodes]
        text = "".join(json.dumps({"step": step, "episode": {"turns": one}}) + "\n" for one in turns)
        folder.episodes(step).write_text(text)
    keep_records(folder, 2)
    assert lines(1) == begun[1], "in a synchronous training there are none, and the files are left alone"
    keep_records(folder, 2, interrupted=True)
    assert (lines(1), lines(2)) == ([[0, 0], [1]], [[1, 1]])
    folder.episodes(2).unlink()
    keep_records(folder, 1, interrupted=True)
    assert lines(1) == [[0, 0]]


def test_metrics_outlive_a_run_that_was_killed_after_its_resume(folder: RunFolder) -> None:
    keep_records(folder, 1)
    folder.metrics.write_text('{"step": 2, "data": {}}\n{"step": 3, "da')
    keep_records(folder, 2)
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2]
