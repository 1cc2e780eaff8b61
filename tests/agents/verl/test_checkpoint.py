from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf
from ray.exceptions import RayActorError

from turntree.agents.verl.checkpoint import StoreCheckpoint, state_folder


def config(name: str = "turntree", replicas: int = 2) -> Any:
    return OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"name": name}}, "trainer": {"nnodes": 1, "n_gpus_per_node": replicas}}
    )


class Server:
    """An actor whose answer is what ``ray.get`` gives."""

    def __init__(self, calls: list[tuple[str, int]], answer: Exception | None) -> None:
        self.save_state, self.calls, self.answer = self, calls, answer

    def remote(self, folder: str, step: int) -> Exception | None:
        self.calls.append((folder, step))
        return self.answer


def saved(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: list[Exception | None], **settings: Any) -> Any:
    calls: list[tuple[str, int]] = []

    def get(answer: Exception | None) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(ray, "get_actor", lambda name: Server(calls, answers[int(name.rsplit("_", 1)[1])]))
    monkeypatch.setattr(ray, "get", get)
    StoreCheckpoint(config(**settings)).on_save(trainer=None, global_step=3, checkpoint_dir=str(folder), new=1)
    return calls


def test_every_server_writes_its_part_into_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = saved(monkeypatch, tmp_path, [None, None])
    assert calls == [(str(state_folder(tmp_path, rank)), 3) for rank in range(2)]


def test_a_lost_server_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(monkeypatch, tmp_path, [RayActorError(), None])
    assert "no part of engine replica 0" in caplog.text


def test_a_full_disk_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"):
        saved(monkeypatch, tmp_path, [None, OSError("no space left on device")])


def test_servers_of_another_make_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert saved(monkeypatch, tmp_path, [], name="vllm") == []


def test_parts_of_checkpoints_that_verl_has_removed_go_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        state_folder(tmp_path / f"global_step_{step}", 0).mkdir(parents=True)
    for step in (2, 3):
        (tmp_path / f"global_step_{step}" / "actor").mkdir()
    saved(monkeypatch, tmp_path / "global_step_3", [None, None])
    assert [(tmp_path / f"global_step_{step}" / "turntree").exists() for step in (1, 2, 3)] == [False, True, True]
