import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import ray
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from tabled_engine import TabledEngine, random_policy

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig, RunAheadConfig
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.agents.verl.records.checkpoint_state import DamagedCheckpoint, ServerState, state_folder
from turntree.agents.verl.serving.checkpoint import StoreCheckpoint
from turntree.spec_tree import DialogueState, SpecForest


def config(name: str = "turntree", devices: int = 2, **rollout: int) -> Any:
    trainer = {"nnodes": 1, "n_gpus_per_node": devices}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": name, **rollout}}, "trainer": trainer})


class Handle:
    def __init__(self, calls: list[tuple[str, int]], answer: Exception | None) -> None:
        self.save_state, self.calls, self.answer = self, calls, answer

    def remote(self, folder: str, step: int) -> Exception | None:
        self.calls.append((folder, step))
        return self.answer


Saved = Callable[..., list[tuple[str, int]]]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Saved:
    calls: list[tuple[str, int]] = []

    def get(answer: Exception | None) -> None:
        if answer is not None:
            raise answer

    def save(*answers: Exception | None, folder: Path = tmp_path, **settings: Any) -> list[tuple[str, int]]:
        monkeypatch.setattr(ray, "get_actor", lambda name: Handle(calls, answers[int(name.split("_")[2])]))
        monkeypatch.setattr(ray, "get", get)
        StoreCheckpoint(config(**settings)).on_save(trainer=None, global_step=3, checkpoint_dir=str(folder), new=1)
        return calls

    return save


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 2), ({"name": "vllm", "devices": 4, "tensor_model_parallel_size": 2}, 2), ({"name": "trtllm"}, 0)],
)
def test_every_server_of_ours_writes_one_part_into_the_checkpoint(saved, tmp_path, settings, count) -> None:
    assert saved(None, None, **settings) == [(str(state_folder(tmp_path, rank)), 3) for rank in range(count)]


def test_a_lost_server_does_not_end_the_training_and_a_full_disk_does(saved, caplog):
    saved(RayActorError(), None)
    assert "no part of engine replica 0" in caplog.text
    with pytest.raises(OSError, match="no space"):
        saved(None, OSError("no space left on device"))


def test_parts_of_checkpoints_that_verl_has_removed_go_too(saved: Saved, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        state_folder(tmp_path / f"global_step_{step}", 0).mkdir(parents=True)
    for step in (2, 3):
        (tmp_path / f"global_step_{step}" / "actor").mkdir()
    saved(None, None, folder=tmp_path / "global_step_3")
    assert [(tmp_path / f"global_step_{step}" / "turntree").exists() for step in (1, 2, 3)] == [False, True, True]


STATE = DialogueState.from_tokens([1, 2])
PARTS = ("forest", "ledger", "run_ahead")


class Server:
    def __init__(self, vocabulary: int = 5) -> None:
        self.engine = TabledEngine(random_policy(1, 5))
        self.forest = SpecForest()
        self.reuse = PrefixReuse(self.engine, ReuseConfig(mode="same_seed"), vocabulary=5)
        self.ahead = PrecomputedTurns(self.engine, RunAheadConfig(enabled=True))  # type: ignore[arg-type]
        self.state = ServerState(self.forest, self.reuse.stored, self.ahead, vocabulary=vocabulary, tokenizer="ours")


async def played() -> Server:
    server = Server()
    server.forest.insert(STATE, [3, 4, 3])
    await server.reuse.generate(TurnRequest((1, 2), Sampling(max_tokens=4, seed=1)))
    server.ahead.store.put((5, 1.0), 7, (1, 2, 3), step=2)
    return server


async def save(folder: Path, *, step: int = 1) -> Server:
    server = await played()
    server.state.write(folder, server.state.collect(), step=step)
    return server


async def test_a_server_takes_up_what_another_one_wrote(tmp_path: Path) -> None:
    before = await save(tmp_path / "state")
    after = Server()
    after.state.read(tmp_path / "state", step=1)
    assert after.forest.stats().tokens == 3
    assert after.forest.tree(STATE) == before.forest.tree(STATE)
    assert list(after.ahead.store.turns()) == list(before.ahead.store.turns())
    for server in (before, after):
        server.reuse.close_step()
    asked = Sampling(max_tokens=4, seed=9)
    turns = [await server.reuse.generate(TurnRequest((1, 2), asked)) for server in (before, after)]
    assert turns[0] == turns[1]
    assert set(turns[1].levels) == {"C"}, "the stored turn came along"


async def test_a_newer_state_takes_the_place_of_an_older_one_and_a_write_that_fails_does_not(tmp_path, monkeypatch):
    await save(tmp_path / "state", step=1)
    await save(tmp_path / "state", step=2)
    Server().state.read(tmp_path / "state", step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    server = await save(tmp_path / "state")
    monkeypatch.setattr(np, "savez", Mock(side_effect=OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        server.state.write(tmp_path / "state", server.state.collect(), step=2)
    Server().state.read(tmp_path / "state", step=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


def relisted(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda text: json.dumps(json.loads(text) | changes).encode()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        *((f"{part}.npz", flipped, rf"digest of {part}\.npz differs .*resume_from_path") for part in PARTS),
        ("ledger.npz", None, r"ledger\.npz is missing"),
        ("state.json", lambda text: text[: len(text) // 2], r"state\.json cannot be read"),
        ("state.json", relisted(format=9), "format is 9, expected 2"),
        ("state.json", relisted(files={"../a": ""}), r"names '\.\./a'"),
        ("state.json", relisted(files=3), r"state\.json cannot be read"),
        ("state.json", lambda _: b"[" * 60_000, r"state\.json cannot be read"),
        ("state.json", relisted(step=4), "step is 4"),
        ("state.json", relisted(tokenizer="other"), "expected turns of the tokenizer ours, got turns of other; use"),
    ],
)
async def test_a_state_that_is_not_whole_or_not_of_the_step_is_refused(tmp_path, name, spoil, said):
    await save(tmp_path / "state")
    file = tmp_path / "state" / name
    file.unlink() if spoil is None else file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DamagedCheckpoint, match=said):
        Server().state.read(tmp_path / "state", step=1)


async def test_tokens_beyond_the_vocabulary_are_refused_and_an_older_state_without_a_tokenizer_is_read(tmp_path):
    server = await save(tmp_path / "state")
    with pytest.raises(DamagedCheckpoint, match=r"from 0 to 1, got [234]: the turns are"):
        Server(2).state.read(tmp_path / "state", step=1)
    listed = tmp_path / "state" / "state.json"
    listed.write_text(listed.read_text().replace('"tokenizer": "ours",', ""))
    after = Server()
    after.state.read(tmp_path / "state", step=1)
    assert after.forest.tree(STATE) == server.forest.tree(STATE)


async def test_parts_that_the_saved_run_did_not_have_stay_empty(tmp_path: Path) -> None:
    server = await played()
    lean = ServerState(server.forest, None, None)
    lean.write(tmp_path / "state", lean.collect(), step=1)
    after = Server()
    after.state.read(tmp_path / "state", step=1)
    assert (after.forest.stats().tokens, after.ahead.store.tokens) == (3, 0)
