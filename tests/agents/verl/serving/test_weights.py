import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.exceptions import RayActorError

from turntree.agents.errors import EngineLost
from turntree.agents.verl.ray_weights import RayWeights
from turntree.agents.verl.serving.local import WeightSender, buckets_of
from turntree.agents.verl.serving.restarts import RESEND, RestartedServer


async def test_all_weights_travel_in_buckets_that_no_longer_change() -> None:
    named = [(str(i), torch.full((4,), float(i))) for i in range(7)]
    buckets = [bucket async for bucket in buckets_of(iter(named), bucket_bytes=40)]
    assert [list(bucket) for bucket in buckets] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert all(torch.equal(bucket[name], tensor) for bucket in buckets for name, tensor in named if name in bucket)
    weight = torch.zeros(2)
    (bucket,) = [bucket async for bucket in buckets_of([("w", weight)], bucket_bytes=1 << 20)]
    weight += 1
    assert bucket["w"].tolist() == [0.0, 0.0]


class Server:
    def __init__(self, restart_after: int | None = None) -> None:
        self.life = 0
        self.got: list[str] = []
        self.steps: list[int] = []
        self.restart_after = restart_after
        self.ready = SimpleNamespace(remote=self.say_ready)
        self.update_weights = SimpleNamespace(remote=self.take_weights)
        self.set_global_steps = SimpleNamespace(remote=self.take_step)

    async def say_ready(self) -> str:
        return str(self.life)

    async def take_weights(self, named: dict[str, torch.Tensor], life: str) -> None:
        self.check(life)
        self.got += named
        if len(self.got) == self.restart_after:
            self.life += 1

    async def take_step(self, step: int, life: str) -> None:
        self.check(life)
        self.steps.append(step)

    def check(self, life: str) -> None:
        if life != str(self.life):
            raise EngineLost("the server was restarted")


Send = Callable[[Server, int], Awaitable[int]]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Send:
    config = SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=0))
    sender = WeightSender(config, None, None, replica_rank=0)

    async def send(server: Server, step: int) -> int:
        gathered = []

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name in "abcd":
                gathered.append(name)
                yield name, torch.zeros(1)

        monkeypatch.setattr("turntree.agents.verl.serving.local.ray.get_actor", lambda name: server)
        await sender.update_weights(weights(), global_steps=step)
        return len(gathered)

    return send


async def test_a_server_gets_all_weights_and_then_their_step(send: Send) -> None:
    server = Server()
    assert await send(server, 3) == 4
    assert (server.got, server.steps) == (["a", "b", "c", "d"], [3])
    server = Server()
    for step in (3, RESEND, 4, RESEND):
        await send(server, step)
    assert server.steps == [3, 3, 4, 4]


async def test_a_server_that_was_restarted_on_the_way_does_not_serve_half_of_the_weights(send: Send) -> None:
    server = Server(restart_after=2)
    # All weights are gathered all the same: other processes of the trainer take part in that.
    assert await send(server, 3) == 4
    assert server.steps == []
    server.restart_after = None
    await send(server, RESEND)
    assert server.steps == [3]


class Stored:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __await__(self) -> Iterator[Any]:
        return iter_of(self.held).__await__()


class Verls:
    def __init__(self) -> None:
        self.replica_rank, self.got = 0, []

    async def update_weights(self, weights: Any, global_steps: int | None) -> None:
        for name in weights:
            self.got.append(name)
            await asyncio.sleep(0)


class Sender(RestartedServer, Verls):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self.handle = server

    async def server(self) -> Server:
        return self.handle


class Unordered(Sender):
    # Control: each update begins as soon as it arrives.

    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        self._sending = asyncio.Lock()
        await super().update_weights(*args, **kwargs)


@pytest.mark.parametrize("kind", [Sender, Unordered])
async def test_a_repeated_update_and_the_next_one_do_not_mix(kind: type[Sender]) -> None:
    server = Server()
    sender = kind(server)
    await sender.update_weights("abcd", global_steps=3)
    await asyncio.gather(
        sender.update_weights("abcd", global_steps=RESEND), sender.update_weights("ABCD", global_steps=4)
    )
    assert server.steps == [3, 3, 4]
    assert ("".join(sender.got) == "abcdabcdABCD") is (kind is Sender)


async def iter_of(held: Any) -> Any:
    return held


def told(engine: RayWeights, *, error: Exception | None = None) -> Any:
    async def call(method: str, *arguments: Any) -> None:
        if error is not None:
            raise error
        getattr(engine, method)(*arguments)

    return SimpleNamespace(execute_checkpoint_engine=SimpleNamespace(remote=call))


async def test_replicas_on_devices_of_their_own_get_all_weights_and_again_when_they_ask(monkeypatch):
    monkeypatch.setattr("turntree.agents.verl.ray_weights.ray.put", Stored)
    trainers, replica, dead = [RayWeights(8) for _ in range(2)], RayWeights(8), RayWeights(8)
    handles = [*map(told, trainers), told(replica), told(dead, error=RayActorError())]
    trained, served = RayWeights.build_topology(2, 2, handles)
    for engine, receivers in zip(trainers, trained["receivers"], strict=True):
        engine.init_process_group(receivers=receivers)
    assert served == {"receivers": [[], []]}
    gathered, context = [], SimpleNamespace(current_actor=None)
    for version in range(2):

        def weights(version: int = version) -> Iterator[tuple[str, torch.Tensor]]:
            for name in "abc":
                gathered.append(name)
                yield name, torch.full((1,), float(version))

        waiting = asyncio.create_task(collect(replica)) if version == 0 else None
        for engine in trainers:  # each gathers every weight, and the first one names them
            await engine.send_weights(weights(), global_steps=version)
        expected = [(name, float(version)) for name in "abc"]
        assert waiting is None or await waiting == expected
        assert await collect(replica) == expected
        with monkeypatch.context() as patch:
            patch.setattr("turntree.agents.verl.ray_weights.ray.get_runtime_context", lambda: context)
            patch.setattr("turntree.agents.verl.ray_weights._TIMEOUT_SECONDS", 0)
            replica.prepare()  # a repeated update does not wait for one that has only begun
            assert await collect(replica, RESEND) == expected
            with pytest.raises(TimeoutError):
                await collect(replica, version)
    assert gathered == [*"abc"] * 4


async def test_a_replica_that_takes_no_weights_though_it_lives_ends_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turntree.agents.verl.ray_weights.ray.put", Stored)
    trainer, replica = RayWeights(8), RayWeights(8)
    trainer.init_process_group(receivers=[told(replica, error=ValueError("of another kind"))])
    with pytest.raises(ValueError, match="of another kind"):
        await trainer.send_weights(iter([("a", torch.zeros(1))]), global_steps=1)
    monkeypatch.setattr("turntree.agents.verl.ray_weights._TIMEOUT_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="sent no weights within 0"):
        await collect(replica)


async def collect(engine: RayWeights, global_steps: int | None = None) -> list[tuple[str, float]]:
    return [(name, float(weight)) async for name, weight in engine.receive_weights(global_steps)]


def test_verl_still_logs_with_an_argument_that_no_logger_takes() -> None:
    from verl.trainer.ppo.v1 import trainer_separate_async

    assert "flush=True" in inspect.getsource(trainer_separate_async.PPOTrainerSeparateAsync._setup)
