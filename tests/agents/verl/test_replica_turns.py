from __future__ import annotations

import asyncio
from typing import Any

import pytest
from machine_speed import patience, soon
from recording_engine import a_turn

from turntree.agents.engines.protocol import Completion, Sampling
from turntree.agents.errors import EngineLost
from turntree.agents.verl.replica_turns import ReplicaTurns
from turntree.spec_tree import DialogueState


class Replica:
    """Says which replica it is; dead ones raise."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.dead = asyncio.Event()
        self.busy = 0.0

    async def generate(self, prompt_ids: Any, sampling: Sampling, **kwargs: Any) -> Completion:
        if self.busy:
            await asyncio.wait([asyncio.create_task(self.dead.wait())], timeout=self.busy)
        if self.dead.is_set():
            raise EngineLost("killed")
        return a_turn(self.rank)


class Cluster:
    """Replicas and the process that asks them."""

    def __init__(self, count: int, **options: Any) -> None:
        self.replicas = [Replica(rank) for rank in range(count)]
        self.turns = ReplicaTurns(dict(enumerate(self.replicas)), self.serving, look_seconds=0.005, **options)

    async def serving(self, rank: int) -> None:
        if self.replicas[rank].dead.is_set():
            raise ConnectionError("restarting")


def state(task: int, turn: int = 0) -> DialogueState:
    return DialogueState.from_tokens([task, turn], task=str(task), env="sums")


async def ask(engine: Any, at: DialogueState) -> int:
    return (await engine.generate((1,), Sampling(), state=at)).token_ids[0]


async def test_the_samples_and_turns_of_a_task_meet_in_one_replica() -> None:
    cluster = Cluster(4)
    for task in range(20):
        dialogues = [cluster.turns.dialogue() for _ in range(4)]
        ranks = {await ask(one, state(task, turn)) for turn in range(3) for one in dialogues}
        assert len(ranks) == 1
    assert set(cluster.turns.routes.loads().values()) == {0}


async def test_a_dialogue_without_a_named_task_stays_where_it_began() -> None:
    cluster = Cluster(8)
    dialogue = cluster.turns.dialogue()
    assert len({await ask(dialogue, DialogueState.from_tokens([turn])) for turn in range(20)}) == 1


async def test_a_lost_replica_is_routed_around_until_it_serves_again() -> None:
    cluster = Cluster(2)
    rank = await ask(cluster.turns.dialogue(), state(0))
    cluster.replicas[rank].dead.set()
    with pytest.raises(EngineLost):
        await ask(cluster.turns.dialogue(), state(0))
    for _ in range(5):
        assert await ask(cluster.turns.dialogue(), state(0)) == 1 - rank
    cluster.replicas[rank].dead.clear()
    await soon(lambda: cluster.turns.routes.alive == [0, 1])
    assert await ask(cluster.turns.dialogue(), state(0)) == rank
    assert cluster.turns.lost == 1


async def test_a_dialogue_leaves_a_replica_that_is_lost() -> None:
    cluster = Cluster(2)
    one, other = cluster.turns.dialogue(), cluster.turns.dialogue()
    rank = await ask(one, state(0))
    assert await ask(other, state(0)) == rank
    cluster.replicas[rank].dead.set()
    with pytest.raises(EngineLost):
        await ask(one, state(0, 1))
    assert await ask(other, state(0, 1)) == 1 - rank


async def test_turns_wait_for_the_only_replica_to_come_back() -> None:
    cluster = Cluster(1)
    cluster.replicas[0].dead.set()
    with pytest.raises(EngineLost):
        await ask(cluster.turns.dialogue(), state(0))
    asyncio.get_running_loop().call_later(0.03, cluster.replicas[0].dead.clear)
    asked = [asyncio.create_task(ask(cluster.turns.dialogue(), state(task))) for task in range(5)]
    assert await asyncio.wait_for(asyncio.gather(*asked), patience(5)) == [0] * 5


async def test_a_wait_for_a_replica_has_an_end() -> None:
    cluster = Cluster(1, patience=0.05)
    cluster.replicas[0].dead.set()
    for match in ("killed", "no engine replica came back within 0.05 s"):
        with pytest.raises(EngineLost, match=match):
            await asyncio.wait_for(ask(cluster.turns.dialogue(), state(0)), patience(5))


async def test_a_death_under_many_turns_counts_once_and_leaves_no_load_behind() -> None:
    cluster = Cluster(2)
    for replica in cluster.replicas:
        replica.busy = patience(60)
    asked = [asyncio.create_task(ask(cluster.turns.dialogue(), state(0))) for _ in range(10)]
    await asyncio.sleep(0.01)
    (rank,) = [rank for rank, load in cluster.turns.routes.loads().items() if load]
    cluster.replicas[rank].dead.set()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(result, EngineLost) for result in results)
    assert cluster.turns.lost == 1
    assert set(cluster.turns.routes.loads().values()) == {0}
