from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict

from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.episodes.async_sampler import REVERIFIED
from turntree.agents.verl.playing import manager
from turntree.agents.verl.playing.interrupted_groups import InterruptedGroups
from turntree.agents.verl.playing.manager import EpisodeManager, EpisodeWorker


class Queue:
    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self.cleared: list[str] = []

    async def async_kv_put(self, *, key: str, tag: Any, partition_id: str) -> None:
        await self.async_kv_batch_put(keys=[key], tags=[tag], partition_id=partition_id)

    async def async_kv_list(self, partition: str) -> dict[str, Any]:
        return {partition: self.held}

    async def async_kv_batch_put(self, *, keys: Any, tags: Any, partition_id: str, fields: Any = None) -> None:
        for key, tag in zip(keys, tags, strict=True):
            self.held[key] = {**self.held.get(key, {}), **tag}

    async def async_kv_clear(self, *, keys: Any, partition_id: str) -> None:
        self.cleared += keys
        for key in keys:
            del self.held[key]


class Player:
    def __init__(self) -> None:
        self.resuming = SimpleNamespace(newest=SimpleNamespace(version=0, see=self._see))
        self.versions: dict[str, int] = {}
        self.trained: list[str] = []
        self.forgotten: list[str] = []

    def _see(self, version: int) -> None:
        self.resuming.newest.version = max(version, self.resuming.newest.version)

    def version_of(self, uid: str) -> int:
        return self.versions.setdefault(uid, self.resuming.newest.version)

    def trained_on(self, uid: str) -> None:
        self.trained.append(uid)

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    async def reverify_group(self, uid: str) -> list[Any]:
        self.versions[uid] = self.resuming.newest.version
        return []


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(manager, "transfer_queue", queue)
    monkeypatch.setattr(manager, "list_of_dict_to_tensordict", list)
    return queue


@pytest.fixture
def worker(queue: Queue) -> Any:
    made = EpisodeWorker.__new__(EpisodeWorker)
    made._player, made._on_resume, made._restarted = Player(), OnResume.EPISODE, False
    made._ended_groups = InterruptedGroups()
    made._batch = 0
    made._outbox, made._carrier, made.background_tasks = [], None, set()
    return made


def reverified(worker: Any) -> dict[str, int]:
    return {uid: group.version for uid, group in worker._ended_groups.ended.items()}


async def finish(worker: Any, queue: Queue, uid: str) -> None:
    queue.held[uid] = {"status": "pending", "is_prompt": True, "global_steps": 1}
    await worker._pass_on({"uid": uid, "global_steps": 1}, [], validate=False)
    await worker._carrier


async def test_a_group_that_waits_is_reverified_once_a_version_and_forgotten_when_it_was_trained_on(worker, queue):
    await finish(worker, queue, "a")
    await finish(worker, queue, "b")
    assert reverified(worker) == {"a": 0, "b": 0}
    await worker.reverify(1)
    assert worker._player.versions == {"a": 0, "b": 0}, "they are of the weights of step 1"
    del queue.held["a"]
    await worker.reverify(2)
    await asyncio.sleep(0)
    await worker._carrier
    assert reverified(worker) == {"b": 1}
    assert worker._player.trained == ["a"]
    assert queue.held["b"]["status"] == "finished"


async def test_in_order_a_group_is_reverified_for_its_own_step_alone(worker: Any, queue: Queue) -> None:
    """Control: the last step re-verifies every group of other weights."""
    for uid in "abc":
        await finish(worker, queue, uid)
    for step, (batch, versions) in enumerate([(1, (1, 0, 0)), (2, (2, 2, 0)), (0, (3, 3, 3))], start=2):
        worker._batch = batch
        await worker.reverify(step)
        await asyncio.gather(*worker.background_tasks)
        await worker._carrier
        assert reverified(worker) == dict(zip("abc", versions, strict=True))


@pytest.mark.parametrize("locked", [True, False])
async def test_an_older_answer_of_the_queue_does_not_come_last(worker, queue, monkeypatch, locked):
    """Control: without the lock the trainer waits forever."""
    for uid in "ab":
        await finish(worker, queue, uid)
    worker._batch, evicted, asked = 1, asyncio.Event(), queue.async_kv_list

    async def late(partition: str) -> Any:
        found = {name: dict(held) for name, held in (await asked(partition)).items()}
        if "a" in found["train"]:
            await evicted.wait()
        return found

    monkeypatch.setattr(queue, "async_kv_list", late)
    if not locked:
        worker._ended_groups.listing = contextlib.AsyncExitStack()
    first = asyncio.create_task(worker.reverify(2))
    await asyncio.sleep(0)
    del queue.held["a"]
    second = asyncio.create_task(worker.reverify(2))
    await asyncio.sleep(0)
    evicted.set()
    await asyncio.gather(first, second)
    assert worker._ended_groups._due == ({"b"} if locked else {"a"})


@pytest.mark.parametrize("again", [True, False])
async def test_a_group_that_is_trained_on_as_soon_as_it_is_reverified_is_gone(worker, queue, monkeypatch, again):
    """Control: a group that was never handed over stays."""
    put = queue.async_kv_batch_put
    if again:
        await finish(worker, queue, "a")

    async def take(*, keys: Any, fields: Any = None, **others: Any) -> None:
        await put(keys=keys, fields=fields, **others)
        if fields is not None and queue.held["a"]["status"] == "finished":
            del queue.held["a"]

    monkeypatch.setattr(queue, "async_kv_batch_put", take)
    if again:
        await worker.reverify(2)
        await asyncio.sleep(0)
        await worker._carrier
    else:
        await finish(worker, queue, "a")
    assert ("a" in queue.held) is not again
    await worker.reverify(3)
    assert worker._player.trained == ["a"] * again


@pytest.mark.parametrize("again", [False, True])
async def test_a_group_whose_reward_cannot_be_computed_is_left_out_and_forgotten(worker, queue, monkeypatch, again):
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError("the reward loop is gone")

    async def outputs(*_: Any) -> list[Any]:
        return [SimpleNamespace(), SimpleNamespace()]

    puts = []
    put = queue.async_kv_batch_put

    async def noted(*, keys: Any, tags: Any, **others: Any) -> None:
        puts.append((keys, tags))
        await put(keys=keys, tags=tags, **others)

    queue.held["a"] = {"status": "pending", "is_prompt": True, "global_steps": 1}
    if again:
        await finish(worker, queue, "a")
    monkeypatch.setattr(queue, "async_kv_batch_put", noted)
    monkeypatch.setattr(worker, "_compute_score", fail)
    monkeypatch.setattr(worker._player, "reverify_group", outputs)
    if again:
        await worker.reverify(2)
    else:
        await worker._pass_on({"uid": "a", "global_steps": 1}, await outputs(), validate=False)
    assert puts == [(["a"], [{"status": "failure"}])]
    assert queue.held["a"] == {"status": "failure", "is_prompt": True, "global_steps": 1}
    assert (worker._outbox, worker._ended_groups._in_transit, reverified(worker)) == ([], set(), {})
    assert worker._player.forgotten == ["a"]
    del queue.held["a"]
    await worker.reverify(3)
    assert len(puts) == 1, "it is not re-verified again"
    assert not worker._player.trained


class Full(Exception):
    """The queue takes nothing more."""


@pytest.mark.parametrize("late", [False, True])
async def test_what_cannot_be_handed_over_or_reverified_ends_the_workers_call(worker, queue, monkeypatch, late):
    await finish(worker, queue, "a")

    async def fail(*_: Any, **__: Any) -> None:
        raise Full

    if late:
        worker._player.resuming.newest.version = 1
        worker._ended_groups.begin_step(1, queue.held)
        monkeypatch.setattr(worker._player, "reverify_group", fail)
        with pytest.raises(Full):
            await finish(worker, queue, "b")
    else:
        with monkeypatch.context() as patch:
            patch.setattr(queue, "async_kv_batch_put", fail)
            with pytest.raises(Full):
                await worker.reverify(2)
        await worker._pass_on({"uid": "b", "global_steps": 1}, [], validate=False)
    with pytest.raises(Full):
        await worker.reverify(3)


async def test_a_group_on_its_way_is_neither_reverified_nor_taken_for_trained_on(worker: Any, queue: Queue) -> None:
    await finish(worker, queue, "a")
    worker._ended_groups._in_transit.add("a")
    queue.held.clear()
    await worker.reverify(5)
    assert reverified(worker) == {"a": 0}
    assert not worker._player.trained


@pytest.mark.parametrize("begins", [False, True])
async def test_what_the_last_step_was_trained_on_does_not_come_back(worker: Any, queue: Queue, begins: bool) -> None:
    """Control: a group that waits comes back."""
    await finish(worker, queue, "a")
    await worker.reverify(1)
    if not begins:
        del queue.held["a"]
    worker._player.resuming.newest.see(1)  # a turn of the new weights has ended
    await finish(worker, queue, "b")
    await asyncio.gather(*worker.background_tasks)
    if begins:
        await worker.reverify(2)
    await worker._carrier
    assert reverified(worker) == {"a": int(begins), "b": 1}
    assert ("a" in queue.held) == begins
    await worker.reverify(2)
    assert worker._player.trained == ([] if begins else ["a"])


async def test_a_restarted_worker_reports_that_it_cannot_reverify(worker: Any) -> None:
    worker._restarted = True
    with pytest.raises(RuntimeError, match="resume the run from its last checkpoint"):
        await worker.reverify(2)
    worker._on_resume = OnResume.TURN
    await worker.reverify(2)


def test_an_engine_that_is_not_turntrees_is_refused_by_name() -> None:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "trtllm"}}})
    with pytest.raises(ConfigError, match="turntree or vllm or sglang, got trtllm"):
        EpisodeManager(config)


class Calls:
    def __init__(self, made: list[Any], number: int) -> None:
        self.generate_sequences = SimpleNamespace(remote=lambda chunk: self._note(number, chunk))
        self.reverify = SimpleNamespace(remote=lambda step: self._note(number, step))
        self._made = made

    def _note(self, number: int, said: Any) -> Any:
        self._made.append((number, said))
        return SimpleNamespace(future=Future)


async def test_every_worker_hears_of_a_step_and_a_task_that_comes_twice_is_told_apart(monkeypatch):
    monkeypatch.setattr(manager, "transfer_queue", SimpleNamespace(kv_list=lambda partition: {}))
    made: list[Any] = []
    one = EpisodeManager.__new__(EpisodeManager)
    one._on_resume, one._forecast = OnResume.EPISODE, None
    one._submitted, one._turn, one._restored = (0, Counter()), 0, False
    one.agent_loop_workers = [Calls(made, number) for number in range(3)]
    for _ in range(2):
        batch = TensorDict({"index": torch.tensor([4, 5]), "uid": NonTensorStack("a", "b")}, batch_size=2)
        batch["global_steps"] = NonTensorData(1, batch_size=[2])
        one.generate_sequences(batch)
    told = [(number, said if isinstance(said, int) else said["repeat"].tolist()) for number, said in made]
    assert told == [(0, [0]), (1, [0]), (2, 1), (2, [1]), (0, [1]), (1, 1)]


async def test_a_resumed_run_plays_what_had_ended_anew_and_finds_no_row_of_before(monkeypatch):
    prompt = {"is_prompt": True, "global_steps": 2}
    held = {
        "a": {**prompt, "status": "finished"},
        **{name: {REVERIFIED: 2} for name in ("a_0_0", "a_1_0", "t_0_0")},
        "b": {**prompt, "status": "pending"},
    }
    calls: dict[str, Any] = {}
    queue = SimpleNamespace(
        kv_list=lambda partition: {partition: held},
        kv_clear=lambda keys, partition_id: calls.update(cleared=keys),
        kv_batch_get=lambda keys, partition_id: batch_of(*keys),
        kv_batch_put=lambda keys, tags, partition_id: calls.update(put=dict(zip(keys, tags, strict=True))),
    )
    monkeypatch.setattr(manager, "transfer_queue", queue)
    made: list[Any] = []
    one = EpisodeManager.__new__(EpisodeManager)
    one._on_resume, one._forecast = OnResume.EPISODE, None
    one._submitted, one._turn, one._restored = (0, Counter()), 0, False
    one.agent_loop_workers = [Calls(made, 0)]
    fresh = batch_of("b")
    fresh["global_steps"] = NonTensorData(3, batch_size=[1])
    for _ in range(2):
        one.generate_sequences(fresh)
    assert calls == {"cleared": ["a_0_0", "a_1_0", "t_0_0"], "put": {"a": {"status": "pending", "global_steps": 3}}}
    assert [(batch["uid"], int(batch["global_steps"]), batch["repeat"].tolist()) for _, batch in made] == [
        (["a"], 3, [0]),
        (["b"], 3, [1]),
        (["b"], 3, [2]),
    ]


def batch_of(*uids: str) -> TensorDict:
    return TensorDict({"index": torch.full((len(uids),), 4), "uid": NonTensorStack(*uids)}, batch_size=len(uids))
