from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.verl.recording import RunFolder, append_line
from turntree.agents.verl.resume import checkpoints_of, join_metrics, keep_records, resume_path, resumed_step
from turntree.agents.verl.sections import ConfigError


def trainer(mode: str, path: str | None = None) -> dict[str, Any]:
    return {"resume_mode": mode, "resume_from_path": path}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was killed in its third step, with a checkpoint of the second."""
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        append_line(folder.metrics, {"step": step, "data": {"score": step}})
        append_line(folder.engine, {"step": step})
        append_line(folder.episodes(step), {"step": step})
        folder.weights(step).parent.mkdir(exist_ok=True)
        folder.weights(step).write_bytes(b"w")
    with folder.engine.open("a") as file:
        file.write('{"step": 4, "tok')
    (folder.checkpoints / "global_step_2").mkdir(parents=True)
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    return folder


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


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


def test_a_path_that_is_not_given_is_asked_for(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"needs trainer\.resume_from_path=FOLDER, got None"):
        resume_path(trainer("resume_path"))


def test_a_damaged_note_of_the_latest_checkpoint_is_refused(folder: RunFolder) -> None:
    (folder.checkpoints / "latest_checkpointed_iteration.txt").write_text("\0\0")
    with pytest.raises(ConfigError, match=r"latest_checkpointed_iteration\.txt should hold the number of a step"):
        resumed_step(trainer("auto"), folder)


def test_records_of_later_steps_go_and_those_of_earlier_ones_stay(folder: RunFolder) -> None:
    keep_records(folder, 2)
    assert steps(folder.engine) == [1, 2]
    assert [folder.episodes(step).exists() for step in (1, 2, 3)] == [True, True, False]
    assert [folder.weights(step).exists() for step in (1, 2, 3)] == [True, True, False]


def test_metrics_outlive_a_trainer_that_empties_their_file(folder: RunFolder) -> None:
    keep_records(folder, 2)
    folder.metrics.write_text('{"step": 3, "data": {}}\n')
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2, 3]
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2, 3]


def test_metrics_outlive_a_run_that_was_killed_after_its_resume(folder: RunFolder) -> None:
    keep_records(folder, 1)
    folder.metrics.write_text('{"step": 2, "data": {}}\n{"step": 3, "da')
    keep_records(folder, 2)
    join_metrics(folder)
    assert steps(folder.metrics) == [1, 2]
