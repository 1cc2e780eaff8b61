import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience
from one_server import start_server

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.verl.records.checkpoint_state import DamagedCheckpoint, checkpoint_folder, state_folder
from turntree.agents.verl.serving import restarts
from turntree.agents.verl.serving.local import TurntreeServer
from turntree.agents.verl.serving.turns import NumberedRequest
from turntree.spec_tree import DialogueState

PROMPT = (1, 2, 3)


class Servers:
    def __init__(self, model: Path, checkpoints: Path) -> None:
        self.model, self.checkpoints = model, checkpoints
        self.started: list[TurntreeServer] = []

    def start(self, **run: Any) -> TurntreeServer:
        settings = {"checkpoint_dir": str(self.checkpoints), "run_ahead": {"enabled": True}} | run
        self.started.append(start_server(self.model, run=settings))
        return self.started[-1]

    def folder(self, step: int) -> Path:
        return state_folder(checkpoint_folder(self.checkpoints, step), 0)


@pytest.fixture
def servers(tiny_model: Path, tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tiny_model, tmp_path)
    yield servers
    for server in servers.started:
        server.engine.close()


async def turn(server: TurntreeServer, seed: int, *, precomputed_for: int = 0) -> Completion:
    state = DialogueState.from_tokens(PROMPT)
    request = TurnRequest(PROMPT, Sampling(max_tokens=6, seed=seed), state=state, precomputed_for=precomputed_for)
    life = await server.submit_turns("client", [NumberedRequest(seed, request)])
    (reply,) = await asyncio.wait_for(server.collect_turns("client", life), patience(30))
    assert reply.completion is not None, reply.error
    return reply.completion


async def saved(servers: Servers, **run: Any) -> TurntreeServer:
    # A server after its first step, with a turn of seed 7 in its ledger and a turn of seed 9 made for the second step.
    server = servers.start(**run)
    await server.set_global_steps(0)
    await turn(server, 7)
    await turn(server, 9, precomputed_for=2)
    await server.save_state(str(servers.folder(1)), 1)
    return server


async def next_step(server: TurntreeServer, seed: int) -> Completion:
    await server.set_global_steps(1)
    await server.begin_step(2)
    return await turn(server, seed)


async def test_a_resumed_server_promotes_what_was_made_ahead_before(servers: Servers) -> None:
    unbroken, resumed = await saved(servers), servers.start()
    turns = [await next_step(server, 9) for server in (unbroken, resumed)]
    assert [turn.levels for turn in turns] == ["B" * len(turns[0].token_ids)] * 2
    assert turns[0].token_ids == turns[1].token_ids
    assert turns[1].draft.verify_steps == 1
    assert resumed.engine.forest.finished([DialogueState.from_tokens(PROMPT)]) == [3]


async def test_a_resumed_server_replays_what_was_said_before(servers: Servers) -> None:
    run = {"run_ahead": {}, "reuse": {"mode": "same_seed"}}
    unbroken, resumed = await saved(servers, **run), servers.start(**run)
    turns = [await next_step(server, 8) for server in (unbroken, resumed)]
    assert [set(turn.levels) for turn in turns] == [{"C"}] * 2
    assert turns[0].token_ids == turns[1].token_ids


async def test_a_server_of_another_run_is_not_a_resumed_one(servers: Servers) -> None:
    await saved(servers)
    fresh = servers.start()
    await fresh.set_global_steps(0)
    assert (await next_step(fresh, 9)).levels == ""


async def test_a_server_without_its_part_of_the_checkpoint_begins_empty_and_says_so(servers, caplog):
    server = servers.start()
    assert (await next_step(server, 9)).levels == ""
    assert "resumes at step 1 with empty stores" in caplog.text


async def test_a_damaged_part_ends_the_resume(servers: Servers) -> None:
    await saved(servers)
    (servers.folder(1) / "run_ahead.npz").write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match=r"the digest of run_ahead\.npz differs"):
        await servers.start().set_global_steps(1)


async def test_a_server_that_was_started_again_takes_no_turns_that_may_have_been_used(servers, monkeypatch):
    await saved(servers)
    monkeypatch.setattr(restarts, "is_restarted", lambda: True)
    assert (await next_step(servers.start(), 9)).levels == ""


async def test_nothing_is_made_ahead_where_it_is_off(servers: Servers) -> None:
    server = servers.start(run_ahead={})
    await server.set_global_steps(0)
    assert (await turn(server, 9, precomputed_for=2)).finish_reason is FinishReason.ABORT


async def test_seeds_of_later_steps_are_those_that_reuse_will_give(servers: Servers) -> None:
    server = servers.start(reuse={"mode": "same_seed"})
    await server.set_global_steps(0)
    await turn(server, 9, precomputed_for=2)
    assert (await next_step(server, 9)).levels[0] == "B"
