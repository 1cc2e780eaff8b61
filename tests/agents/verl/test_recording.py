from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from turntree.agents.episode import Episode, StopReason
from turntree.agents.record import EpisodeWriter, read_records
from turntree.agents.verl.recording import EpisodeRecorder, RunFolder, append_line, save_weights

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
    """The files that nobody closed."""
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
