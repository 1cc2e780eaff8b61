from __future__ import annotations

import json
from collections.abc import Callable
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


def flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


def relisted(**changes: int) -> Callable[[bytes], bytes]:
    return lambda text: json.dumps(json.loads(text) | changes).encode()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("forest.npz", flipped, r"forest\.npz does not have the digest .*resume_from_path"),
        ("ledger.npz", flipped, r"ledger\.npz does not have the digest .*resume_from_path"),
        ("run_ahead.npz", flipped, r"run_ahead\.npz does not have the digest .*resume_from_path"),
        ("ledger.npz", None, r"ledger\.npz is missing"),
        ("state.json", lambda text: text[: len(text) // 2], r"state\.json cannot be read"),
        ("state.json", relisted(format=9), "format 9, expected 1"),
        ("state.json", relisted(step=4), "of step 4"),
    ],
)
async def test_a_state_that_is_not_whole_or_not_of_the_step_is_refused(
    tmp_path: Path, name: str, spoil: Callable[[bytes], bytes] | None, said: str
) -> None:
    await save(tmp_path / "state")
    file = tmp_path / "state" / name
    file.unlink() if spoil is None else file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DamagedCheckpoint, match=said):
        Server().state.read(tmp_path / "state", step=1)


async def test_parts_that_the_saved_run_did_not_have_stay_empty(tmp_path: Path) -> None:
    server = await played()
    lean = ServerState(server.forest, None, None)
    lean.write(tmp_path / "state", lean.collect(), step=1)
    after = Server()
    after.state.read(tmp_path / "state", step=1)
    assert after.forest.stats().tokens == 3
    assert after.ahead.stock.tokens == 0
