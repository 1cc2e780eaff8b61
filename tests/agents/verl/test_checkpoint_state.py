from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tabled_engine import TabledEngine, random_policy

from turntree.agents.engines.protocol import Sampling
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.reuse_config import ReuseConfig
from turntree.agents.run_ahead import RunAhead
from turntree.agents.run_ahead_config import RunAheadConfig
from turntree.agents.verl.checkpoint_state import DamagedCheckpoint, ServerState
from turntree.spec_tree import DialogueState, SpecForest

STATE = DialogueState.from_tokens([1, 2])


class Server:
    """The parts of a server."""

    def __init__(self) -> None:
        self.engine = TabledEngine(random_policy(1, 5))
        self.forest = SpecForest()
        self.reuse = PrefixReuse(self.engine, ReuseConfig(mode="replay"), vocabulary=5)
        self.ahead = RunAhead(self.engine, RunAheadConfig(enabled=True))  # type: ignore[arg-type]
        self.state = ServerState(self.forest, self.reuse, self.ahead)


async def played() -> Server:
    server = Server()
    server.forest.insert(STATE, [3, 4, 3])
    await server.reuse.generate((1, 2), Sampling(max_tokens=4, seed=1))
    server.ahead.stock.put((5, 1.0), 7, (1, 2, 3), step=2)
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
    assert list(after.ahead.stock.turns()) == list(before.ahead.stock.turns())
    for server in (before, after):
        server.reuse.close_step()
    asked = Sampling(max_tokens=4, seed=9)
    turns = [await server.reuse.generate((1, 2), asked) for server in (before, after)]
    assert turns[0] == turns[1]
    assert set(turns[1].levels) == {"C"}, "the stored turn came along"


async def test_a_newer_state_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    await save(tmp_path / "state", step=1)
    await save(tmp_path / "state", step=2)
    Server().state.read(tmp_path / "state", step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


async def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await save(tmp_path / "state")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space"):
        server.state.write(tmp_path / "state", server.state.collect(), step=2)
    Server().state.read(tmp_path / "state", step=1)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["forest.npz", "ledger.npz", "run_ahead.npz"])
async def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "state"
    await save(folder)
    whole = bytearray((folder / name).read_bytes())
    whole[len(whole) // 2] ^= 1
    (folder / name).write_bytes(whole)
    with pytest.raises(DamagedCheckpoint, match=rf"{name} does not have the digest .*resume_from_path"):
        Server().state.read(folder, step=1)


async def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    await save(folder)
    (folder / "ledger.npz").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"ledger\.npz is missing"):
        Server().state.read(folder, step=1)


async def test_a_cut_list_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    await save(folder)
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text[: len(text) // 2])
    with pytest.raises(DamagedCheckpoint, match=r"state\.json cannot be read"):
        Server().state.read(folder, step=1)


@pytest.mark.parametrize(("key", "value", "said"), [("format", 9, "format 9, expected 1"), ("step", 4, "of step 4")])
async def test_another_version_or_step_is_refused(tmp_path: Path, key: str, value: int, said: str) -> None:
    folder = tmp_path / "state"
    await save(folder)
    listed = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(listed | {key: value}))
    with pytest.raises(DamagedCheckpoint, match=said):
        Server().state.read(folder, step=1)


async def test_parts_that_the_saved_run_did_not_have_stay_empty(tmp_path: Path) -> None:
    server = await played()
    lean = ServerState(server.forest, None, None)
    lean.write(tmp_path / "state", lean.collect(), step=1)
    after = Server()
    after.state.read(tmp_path / "state", step=1)
    assert after.forest.stats().tokens == 3
    assert after.ahead.stock.tokens == 0
