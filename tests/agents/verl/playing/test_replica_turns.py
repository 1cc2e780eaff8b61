import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from machine_speed import patience, soon
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.engines.routing import route_key
from turntree.agents.errors import EngineFailed, EngineLost
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.serving.turns import TurnBatchServer, TurnPipe
from turntree.spec_tree import DialogueState


async def echo(seconds: float, prompt: tuple[int, ...]) -> Completion:
    await asyncio.sleep(seconds)
    if len(prompt) == 1:
        raise ValueError("too short")
    return a_turn(*prompt)


def batches(seconds: float = 0.0) -> TurnBatchServer:
    return TurnBatchServer(RecordingEngine(lambda prompt, _: echo(seconds, prompt)))


class Actor:
    def __init__(self, batches: TurnBatchServer) -> None:
        self.batches = batches
        self.calls: Counter[str] = Counter()
        self.dead = False
        self.restarts_after_submit = False
        self.submit_turns = SimpleNamespace(remote=self.submit)
        self.collect_turns = SimpleNamespace(remote=self.collect)

    async def submit(self, client: str, requests: Any) -> str:
        self.calls["submit"] += 1
        if self.dead:
            raise ConnectionError("gone")
        life = self.batches.submit(client, requests)
        if self.restarts_after_submit:
            self.restarts_after_submit, self.batches = False, batches()
        return life

    async def collect(self, client: str, life: str) -> Any:
        self.calls["collect"] += 1
        return await self.batches.collect(client, life)


async def test_turns_that_are_asked_for_together_travel_together() -> None:
    actor = Actor(batches(0.02))
    pipe = TurnPipe(actor, "a")
    turns = await asyncio.gather(*(pipe.generate(TurnRequest((1, number), Sampling())) for number in range(200)))
    assert [turn.token_ids for turn in turns] == [(1, number) for number in range(200)]
    assert actor.calls["submit"] == 1
    assert actor.calls["collect"] < 20


async def test_a_turn_may_be_asked_for_while_others_run() -> None:
    pipe = TurnPipe(Actor(batches(0.01)), "a")

    async def episode(number: int) -> tuple[int, ...]:
        prompt: tuple[int, ...] = (number, number)
        for _ in range(3):
            await asyncio.sleep(number / 1000)
            prompt = (*(await pipe.generate(TurnRequest(prompt, Sampling()))).token_ids, 0)
        return prompt

    episodes = await asyncio.gather(*map(episode, range(20)))
    assert episodes == [(number, number, 0, 0, 0) for number in range(20)]


async def test_clients_of_one_server_get_their_own_turns() -> None:
    actor = Actor(batches(0.01))
    first, second = TurnPipe(actor, "a"), TurnPipe(actor, "b")
    turns = await asyncio.gather(
        first.generate(TurnRequest((1, 1), Sampling())), second.generate(TurnRequest((2, 2), Sampling()))
    )
    assert [turn.token_ids for turn in turns] == [(1, 1), (2, 2)]


async def test_what_the_engine_raises_reaches_the_episode_that_asked_and_the_pipe_goes_on() -> None:
    pipe = TurnPipe(Actor(batches()), "a")
    good, bad = await asyncio.gather(
        pipe.generate(TurnRequest((1, 2), Sampling())),
        pipe.generate(TurnRequest((1,), Sampling())),
        return_exceptions=True,
    )
    assert isinstance(good, Completion)
    assert isinstance(bad, EngineFailed)
    assert str(bad) == "ValueError: too short"
    for number in range(3):
        assert (await pipe.generate(TurnRequest((number, 1), Sampling()))).token_ids == (number, 1)
        await asyncio.sleep(0.01)


async def test_a_dead_server_ends_every_wait() -> None:
    actor = Actor(batches(1000))
    actor.dead = True
    pipe = TurnPipe(actor, "a")
    turns = await asyncio.wait_for(
        asyncio.gather(*(pipe.generate(TurnRequest((1, 2), Sampling())) for _ in range(3)), return_exceptions=True),
        patience(5),
    )
    assert [str(turn) for turn in turns] == ["the rollout server is unreachable: gone"] * 3
    assert all(isinstance(turn, EngineLost) for turn in turns)


async def test_what_was_asked_of_a_server_before_its_restart_is_lost_and_not_waited_for() -> None:
    actor = Actor(batches(1000))
    pipe = TurnPipe(actor, "a")
    actor.restarts_after_submit = True
    with pytest.raises(EngineLost, match="the server was restarted"):
        await asyncio.wait_for(pipe.generate(TurnRequest((1, 1), Sampling())), patience(5))
    actor.batches = batches()
    assert (await pipe.generate(TurnRequest((2, 2), Sampling()))).token_ids == (2, 2)


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_nothing_is_left_behind(seconds: float) -> None:
    actor = Actor(batches(seconds))
    pipe = TurnPipe(actor, "a")
    asked = asyncio.gather(*(pipe.generate(TurnRequest((1, 2), Sampling())) for _ in range(10)))
    await asyncio.sleep(0)
    assert pipe.waiting == 10
    await asked
    await soon(lambda: (pipe.waiting, actor.batches.held) == (0, 0))


class Replica:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.dead = asyncio.Event()
        self.busy = 0.0

    async def generate(self, request: TurnRequest) -> Completion:
        if self.busy:
            await asyncio.wait([asyncio.create_task(self.dead.wait())], timeout=self.busy)
        if self.dead.is_set():
            raise EngineLost("killed")
        return a_turn(self.rank)


class Cluster:
    def __init__(self, count: int, **options: Any) -> None:
        self.replicas = [Replica(rank) for rank in range(count)]
        self.turns = ReplicaTurns(dict(enumerate(self.replicas)), self.serving, look_seconds=0.005, **options)

    async def serving(self, rank: int) -> None:
        if self.replicas[rank].dead.is_set():
            raise ConnectionError("restarting")


def state(task: int, turn: int = 0) -> DialogueState:
    return DialogueState.from_tokens([task, turn], task=str(task), env="sums")


async def ask(engine: Any, at: DialogueState) -> int:
    return (await engine.generate(TurnRequest((1,), Sampling(), state=at))).token_ids[0]


async def test_the_samples_and_turns_of_a_task_meet_in_one_replica() -> None:
    cluster = Cluster(4)
    for task in range(20):
        dialogues = [cluster.turns.dialogue() for _ in range(4)]
        ranks = {await ask(one, state(task, turn)) for turn in range(3) for one in dialogues}
        assert len(ranks) == 1
    assert set(cluster.turns.routes.loads().values()) == {0}


async def test_a_precomputed_turn_goes_to_its_owner_and_counts_nowhere() -> None:
    """Control: a turn of this step."""
    cluster = Cluster(2)
    owner, routes = cluster.turns.owner(state(0)), cluster.turns.routes
    assert routes.hold(route_key(state(0)), 1 - owner)
    before = routes.loads()
    for precomputed_for, rank in ((2, owner), (0, 1 - owner)):
        cluster.replicas[rank].busy = 0.01
        request = TurnRequest((1,), Sampling(), state=state(0), precomputed_for=precomputed_for)
        asked = asyncio.create_task(cluster.turns.dialogue().generate(request))
        await asyncio.sleep(0)
        assert (routes.loads() == before) == bool(precomputed_for)
        assert (await asked).token_ids == (rank,)
        assert routes.loads() == before


async def test_a_dialogue_without_a_named_task_stays_where_it_began() -> None:
    dialogue = Cluster(8).turns.dialogue()
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
    for match in ("killed", "none returned within 0.05 s"):
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
    assert (cluster.turns.lost, set(cluster.turns.routes.loads().values())) == (1, {0})
