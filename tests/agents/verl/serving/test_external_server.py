from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.engines.served.remote_store import RemoteStore, carry_out
from turntree.agents.errors import EngineLost
from turntree.agents.turn_drafts.stored import StoredTurns
from turntree.agents.verl.config.settings import SharingSettings
from turntree.agents.verl.records.checkpoint_state import checkpoint_folder, state_folder
from turntree.agents.verl.serving import external_server, restarts
from turntree.agents.verl.serving.external_server import ExternalReplica, ExternalServer
from turntree.agents.verl.serving.turn_broker import TurnBroker
from turntree.agents.verl.serving.turns import NumberedRequest
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.rules.ledger import Ledger
from turntree.spec_tree.rules.ledger_arrays import fill_ledger, ledger_arrays
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_sharing import Swapped

HERE = DialogueState.from_tokens([1, 2], task="7", env="sums")
REPLAY = {"reuse": {"mode": "same_seed"}}
BROKER_BYTES = 1 << 13  #: bytes of the broker: two steps of 50 turns from each of two replicas do not fit


class DirectBroker:
    def __init__(self, broker: TurnBroker, rank: int) -> None:
        self.broker, self.rank = broker, rank
        self.cursor: Any = None

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        news = self.broker.swap(self.rank, f"{self.rank}", own, first, self.cursor)
        self.cursor = news.cursor
        return Swapped(news.batches, news.missed)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> TurnBroker:
    made = TurnBroker(SharingSettings(replicas_per_task=0, max_bytes=BROKER_BYTES))
    monkeypatch.setattr(external_server, "BrokerClient", lambda rank: DirectBroker(made, rank))
    return made


class VerlServer:
    async def generate(self, prompt_ids: Any, sampling_params: Any, request_id: str) -> str:
        return f"verl's own answer to {request_id}"

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def sleep(self) -> None:
        """There is no memory to give back."""


def no_two_alike(rank: int, length: Callable[[int], int]) -> RecordingEngine:
    # Turns are numbered, unique over both replicas; a turn's number decides its ``length``.
    engine = RecordingEngine()

    def say(*_: Any) -> Completion:
        number = len(engine.asked) - 1
        return a_turn(1000 * rank + number, *[3] * length(number))

    engine.answers = (say,)
    return engine


class Server(ExternalServer, VerlServer):
    def __init__(
        self,
        rank: int = 0,
        run: dict[str, Any] | None = None,
        *,
        forest: ForestConfig | None = None,
        length: Callable[[int], int] = lambda number: 3,
    ) -> None:
        self.replica_rank, self.global_steps = rank, 0
        self.forest = SpecForest(forest)
        self.sampler = no_two_alike(rank, length)
        custom = OmegaConf.create({} if run is None else {"turntree": run})
        self.config = SimpleNamespace(custom=custom, seed=0, response_length=8, max_model_len=64)

    def engine_and_store(self) -> Any:
        async def call(method: str, *args: Any) -> None:
            carry_out(self.forest, method, args, first_rank=True)

        engine = SimpleNamespace(generate=self.sampler.generate, vocabulary=1 << 16, max_context=64, version=0)
        return engine, RemoteStore(call)

    async def draft_counters(self) -> dict[str, float]:
        return {"steps": 5.0, "seconds": 2.0, "draft_seconds": 0.5, "idle_seconds": 0.25}

    @property
    def drafts(self) -> list[tuple[int, ...]]:
        return [tuple(asked.draft) for asked in self.sampler.asked if asked.draft]

    @property
    def held(self) -> int:
        return self.forest.stats().rollouts

    @property
    def ledger(self) -> Ledger:
        assert self._turns is not None
        (stored,) = (one for one in self._turns.engine._sources if isinstance(one, StoredTurns))  # the only door to it
        return stored.ledger


async def pair(*, shared: bool = True, **arguments: Any) -> list[Server]:
    servers = [Server(rank, **arguments) for rank in range(2)]
    await asyncio.gather(*(server.serve_turns(shared=shared) for server in servers))
    return servers


async def ask(server: Server, seed: int, *, reuse: bool = True) -> Any:
    request = TurnRequest((1, 2), Sampling(seed=seed, max_tokens=8), state=HERE, reuse=reuse)
    life = await server.submit_turns("c", [NumberedRequest(0, request)])
    (reply,) = await server.collect_turns("c", life)
    assert not reply.error
    return reply.completion


async def play(servers: Sequence[Server], step: int, *, turns: int = 3, reuse: bool = True) -> None:
    for server in servers:
        for number in range(turns):
            await ask(server, 100 * step + number, reuse=reuse)
    for server in servers:
        await server.sleep()
    for server in servers:
        await server.set_global_steps(step)


@pytest.mark.parametrize("run", [{}, REPLAY], ids=["plain", "reuse"])
@pytest.mark.parametrize("shared", [True, False])
async def test_what_one_replica_sampled_is_in_the_store_of_the_other(broker, run, shared):
    """Control: without a broker the stores stay empty."""
    servers = await pair(shared=shared, run=run)
    await play(servers, 1)
    assert [server.held for server in servers] == [3 * shared] * 2
    await play(servers, 2)
    assert [server.held for server in servers] == [6 * shared] * 2
    counted = await servers[0].step_counters()
    assert (counted["requests"], counted["prompt_tokens"], counted["tokens"], counted["forward_passes"]) == (
        6,
        12,
        24,
        5,
    )
    assert (counted["seconds"], counted["draft_seconds"], counted["draft_idle_seconds"]) == (2.0, 0.5, 0.25)
    assert counted.get("sharing_received", 0) == 6 * shared


@pytest.mark.parametrize("run", [{}, REPLAY, {"validation": {"coupled": True}}], ids=["plain", "reuse", "coupled"])
async def test_turns_of_validations_are_given_to_nobody(broker: TurnBroker, run: dict[str, Any]) -> None:
    servers = await pair(run=run)
    await play(servers, 1, reuse=False)
    assert [server.held for server in servers] == [0, 0]
    await play(servers, 2)
    assert [server.held for server in servers] == [3, 3], "the control: turns of training are"


async def test_verls_own_agent_loops_are_answered_by_verl_and_their_turns_are_given_to_nobody(broker):
    servers = await pair()
    assert await servers[1].generate([1, 2], {"max_tokens": 8}, "r") == "verl's own answer to r"
    await play(servers, 1, turns=0)
    assert [server.held for server in servers] == [0, 0]


@pytest.mark.parametrize("most", [1024, 1 << 20])
async def test_store_and_broker_stay_within_their_bounds_whatever_the_others_give(broker, most):
    """Control: with the larger bound all turns arrive."""
    forest = ForestConfig(max_tokens=most, max_cold_tokens=most, rollouts_per_state=1 << 10)
    servers = await pair(forest=forest, length=lambda number: 15)
    for step in range(1, 5):
        await play(servers, step, turns=50)
    for server in servers:
        stats = server.forest.stats()
        assert stats.tokens + stats.cold_tokens <= 2 * most
        assert (stats.rollouts == 200) is (most > 1024)
    assert broker.stats().nbytes <= BROKER_BYTES
    assert broker.stats().dropped > 0


async def used(
    length: Callable[[int], int] = lambda number: 3, *, lent: bool = False, steps: int = 6
) -> list[list[int]]:
    # Numbers of the stored turns with which each replica began a turn. ``lent``: stored turns are shared, not drafts.
    servers = await pair(run=REPLAY, length=length)
    for step in range(1, steps):
        await play(servers, step)
        if lent:
            fill_ledger(servers[1].ledger, ledger_arrays(servers[0].ledger))
    return [[draft[0] for draft in server.drafts] for server in servers]


async def test_replicas_that_share_use_each_stored_turn_once_and_their_own_alone(broker: TurnBroker) -> None:
    first, second = await used()
    assert len(first) == len(second) == 12
    assert max(Counter(first + second).values()) == 1
    assert max(first) < 1000 <= min(second)


async def test_stored_turns_that_two_replicas_hold_are_used_twice(broker: TurnBroker) -> None:
    """Control of the test above."""
    first, second = await used(lent=True)
    assert set(first) & set(second)


LENGTHS = (lambda number: 1 + number % 3, lambda number: 6 - number % 3)


async def test_no_stored_turn_is_chosen_by_its_length(broker: TurnBroker) -> None:
    assert await used(LENGTHS[0]) == await used(LENGTHS[1])


async def test_stored_turns_that_are_chosen_by_their_length_are_noticed(broker, monkeypatch):
    """Control of the test above."""
    take = Ledger.take

    def shortest(self: Ledger, key: Any, *, pick: int = 0, like: Any = ()) -> Any:
        waiting = self.waiting(key)
        return take(self, key, pick=min(range(len(waiting)), key=lambda at: len(waiting[at].tokens), default=0))

    monkeypatch.setattr(Ledger, "take", shortest)
    assert await used(LENGTHS[0]) != await used(LENGTHS[1])


@pytest.mark.parametrize("run", [{}, REPLAY], ids=["plain", "reuse"])
async def test_a_resumed_replica_goes_on_as_the_unbroken_one(broker, monkeypatch, tmp_path, run):
    run = {**run, "checkpoint_dir": str(tmp_path)}
    unbroken = await pair(run=run)
    await play(unbroken, 1)
    for server in unbroken:
        for number in range(3):
            await ask(server, 200 + number)
    for server in unbroken:
        await server.sleep()
    for server in unbroken:
        await server.save_state(str(state_folder(checkpoint_folder(tmp_path, 2), server.replica_rank)), 2)

    new = TurnBroker(SharingSettings(replicas_per_task=0))
    resumed, empty = [], []
    for servers, folder in ((resumed, str(tmp_path)), (empty, "")):
        monkeypatch.setattr(external_server, "BrokerClient", lambda rank: DirectBroker(new, rank))
        servers += await pair(run={**run, "checkpoint_dir": folder})
    for server in (*unbroken, *resumed, *empty):
        await server.set_global_steps(2)
    assert [server.held for server in resumed] == [server.held for server in unbroken] == [6, 6]
    assert [server.held for server in empty] == [0, 0], "the control: nothing was loaded"
    before = [len(server.drafts) for server in unbroken]
    for server in (*unbroken, *resumed, *empty):
        await ask(server, 300)
    again = [server.drafts[begin:] for server, begin in zip(unbroken, before, strict=True)]
    assert [server.drafts for server in resumed] == again
    assert all(again) == bool(run.get("reuse"))
    assert [server.drafts for server in empty] == [[], []]


async def test_calls_of_a_store_are_made_one_after_another_so_that_a_file_has_every_turn_of_before() -> None:
    calls: list[tuple[str, str]] = []

    async def call(method: str, *_: Any) -> None:
        calls.append((method, "begins"))
        await asyncio.sleep(0)
        calls.append((method, "ends"))

    store = RemoteStore(call)
    for number in range(3):
        store.insert(HERE, [number])
    await asyncio.to_thread(store.save, Path("store"))
    methods = ["insert", "insert", "insert", "save"]
    assert calls == [(method, when) for method in methods for when in ("begins", "ends")]


async def test_a_server_that_answers_no_requests_serves_as_verls(broker: TurnBroker) -> None:
    server = Server()
    server.engine_and_store = lambda: None  # type: ignore[method-assign]
    await server.serve_turns(shared=True)
    await server.sleep()
    await server.set_global_steps(1)
    assert not await server.step_counters()


async def test_a_restarted_server_samples_nothing_until_it_has_the_trainers_weights(monkeypatch):
    monkeypatch.setattr(restarts, "is_restarted", lambda: True)
    server = Server(run=REPLAY)
    await server.serve_turns(shared=False)
    serving = asyncio.create_task(server.serving())
    for call in (server.generate([1, 2], {}, "r"), server.submit_turns("c", [])):
        with pytest.raises(EngineLost, match="no weights"):
            await call
    with pytest.raises(EngineLost, match="during a weight update"):
        await server.set_global_steps(2, "an earlier life")
    assert not serving.done()
    await server.set_global_steps(2, await server.ready())
    await serving
    await ask(server, 1)


class Launched(ExternalReplica):
    def __init__(self, sharing: Any) -> None:
        self.told: list[bool] = []
        self.config = SimpleNamespace(name="turntree", engine_kwargs={"turntree": {"sharing": sharing}})
        self.world_size, self.replica_rank, self.model_config = 1, 0, None

    async def hear(self, *, shared: bool) -> None:
        self.told.append(shared)


@pytest.mark.parametrize(
    ("workers", "sharing", "shared"), [(2, {"replicas_per_task": 1}, True), (1, {}, False), (2, None, False)]
)
async def test_a_replica_joins_the_broker_where_there_are_others_and_the_settings_say_so(
    monkeypatch: pytest.MonkeyPatch, workers: int, sharing: Any, shared: bool
) -> None:
    class Verls:
        async def init_hybrid(self, worker_group: Any) -> None:
            await self.launch_servers()  # type: ignore[attr-defined]

        async def launch_servers(self) -> None:
            remote = SimpleNamespace(remote=self.hear)  # type: ignore[attr-defined]
            self.servers = [SimpleNamespace(serve_turns=remote)] * 2

    started: list[SharingSettings] = []
    monkeypatch.setattr("turntree.agents.verl.serving.turn_broker.start_broker", started.append)
    monkeypatch.setattr(external_server, "held", lambda argument: argument)
    replica = type("Replica", (Launched, Verls), {})(sharing)
    await replica.init_hybrid(SimpleNamespace(workers=[None] * workers))
    assert replica.told == [shared, shared]
    assert started == [SharingSettings(replicas_per_task=1)] * shared
