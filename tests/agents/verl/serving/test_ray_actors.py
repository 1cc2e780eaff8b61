import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from machine_speed import eventually, soon
from omegaconf import OmegaConf
from one_server import rollout_config
from warm_driver import start_no_more_of_ray, warm_socket

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.verl.config.settings import SharingSettings
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.run.prefork import py_executable
from turntree.agents.verl.serving.local import _device_sharing, _node_and_devices
from turntree.agents.verl.serving.turn_broker import BROKER_NAME, BrokerClient, start_broker
from turntree.agents.verl.serving.turns import TurnPipe
from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_sharing import SharedTurns, SharingFailed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    start_no_more_of_ray()
    folder = tempfile.mkdtemp(prefix="tt-", dir="/tmp")  # paths of sockets are short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_enable_worker_prestart", "0")
        options = {"num_cpus": 4, "num_gpus": 2, "include_dashboard": False, "object_store_memory": 100_000_000}
        options |= {"_temp_dir": folder, "runtime_env": {"py_executable": py_executable(warm_socket())}}  # forked
        try:
            ray.init(**options)
        except Exception:  # Ray gives itself 30 seconds to start, which is short on a busy machine
            ray.shutdown()
            ray.init(**options)
        yield ray
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_broker(cluster: Any) -> Iterator[None]:
    # Ray ends an actor that nobody references only some time later.
    yield
    with suppress(ValueError):
        cluster.kill(cluster.get_actor(BROKER_NAME))
    eventually(lambda: BROKER_NAME not in cluster.util.list_named_actors(), 120)


def test_a_broker_that_is_killed_is_done_without_and_comes_back(cluster: Any) -> None:
    with pytest.raises(SharingFailed, match="cannot be reached"):
        BrokerClient(0).swap(TurnBatch.of([], []), 0)
    broker = start_broker(SharingSettings(replicas_per_task=0))
    forest = SpecForest()
    one, other = SharedTurns(None, BrokerClient(0)), SharedTurns(forest, BrokerClient(1))
    here = DialogueState.from_tokens([1, 2], task="7", env="sums")
    one.note(here, (1, 2, 3))
    one.swap()
    assert other.swap().received == 1
    pid = cluster.get(broker.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)  # dead at once, unlike by ray.kill(); Ray starts it again, empty
    one.note(here, (4, 5, 6))
    eventually(lambda: one.swap().sent == 2, 120)
    eventually(lambda: other.swap().received == 2, 120)
    assert forest.stats().rollouts == 2
    assert cluster.get(cluster.get_actor(BROKER_NAME).stats.remote()).turns == 1


@pytest.mark.release
def test_a_server_sees_the_accelerator_that_its_trainer_holds(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    class Process:  # in here it travels with its code: the workers cannot import this module
        def visible(self) -> str | None:
            return os.environ.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr("turntree.agents.verl.serving.local.get_platform", PlatformCUDA)
    actor = cluster.remote(Process)
    trainers = [actor.options(num_cpus=0, num_gpus=1).remote() for _ in range(2)]
    seen = []
    for trainer in trainers:
        _, devices = cluster.get(trainer.__ray_call__.remote(_node_and_devices))
        server = actor.options(num_cpus=0, runtime_env=_device_sharing(devices)).remote()
        seen.append((cluster.get(trainer.visible.remote()), cluster.get(server.visible.remote())))
    assert seen[0][0] != seen[1][0]
    assert all(trainers == servers for trainers, servers in seen)
    alone = cluster.get(actor.options(num_cpus=0).remote().visible.remote())
    assert alone not in {visible for visible, _ in seen}, "the control: without the variables Ray hides them"


class Replicas:
    def __init__(self, ray: Any, model: Path) -> None:
        from turntree.agents.verl.names import server_name
        from turntree.agents.verl.serving.local import TurntreeServer

        self.ray = ray
        config = rollout_config(speculation={"min_probability": 0.0})
        self.broker = start_broker(SharingSettings(replicas_per_task=0))  # it lives as long as somebody holds it
        self.servers = [
            ray.remote(TurntreeServer)
            .options(name=server_name(rank), num_cpus=0, max_restarts=2, max_concurrency=100)
            .remote(config, OmegaConf.create({"path": str(model)}), rank, None, SharingSettings(replicas_per_task=0))
            for rank in range(2)
        ]
        ray.get([server.ready.remote() for server in self.servers])

    def pid(self, rank: int) -> int:
        return int(self.ray.get(self.servers[rank].__ray_call__.remote(lambda _: os.getpid())))

    def stored(self, rank: int) -> int:
        look = lambda server: server.engine.forest.stats().rollouts  # noqa: E731 - a lambda travels with its code
        return int(self.ray.get(self.servers[rank].__ray_call__.remote(look)))

    def turns(self) -> ReplicaTurns:
        client = uuid4().hex
        pipes = {rank: TurnPipe(server, client) for rank, server in enumerate(self.servers)}

        async def serving(rank: int) -> None:
            await self.servers[rank].serving.remote()

        return ReplicaTurns(pipes, serving)


async def test_replicas_share_turns_and_one_that_is_killed_is_done_without_until_it_has_weights(cluster, tiny_model):
    replicas = Replicas(cluster, tiny_model)
    turns = replicas.turns()
    states = [DialogueState.from_tokens([task], task=str(task), env="sums") for task in range(8)]

    async def ask(state: DialogueState) -> tuple[int, ...]:
        sampling = Sampling(max_tokens=6, seed=5)
        return (await turns.dialogue().generate(TurnRequest((1, 2, state.exact % 50), sampling, state=state))).token_ids

    said = await asyncio.gather(*map(ask, states))
    held = [replicas.stored(rank) for rank in range(2)]
    assert sum(held) == len(states)
    assert min(held) > 0
    for _ in range(2):  # the first replica is told of the second one's turns at its next step
        await asyncio.gather(*(server.set_global_steps.remote(1) for server in replicas.servers))
    assert [replicas.stored(rank) for rank in range(2)] == [len(states)] * 2

    victim = max(range(2), key=lambda rank: held[rank])
    os.kill(replicas.pid(victim), signal.SIGKILL)
    lost = await asyncio.gather(*map(ask, states), return_exceptions=True)
    assert any(isinstance(one, EngineLost) for one in lost)
    assert await asyncio.gather(*map(ask, states)) == said  # the same seeds say the same elsewhere
    assert turns.routes.alive == [1 - victim]

    server = replicas.servers[victim]
    life = await server.ready.remote()  # waits for the restart
    with pytest.raises(EngineLost, match="no weights"):
        await server.submit_turns.remote("c", [])
    with pytest.raises(EngineLost, match="during a weight update"):
        await server.set_global_steps.remote(2, "an earlier life")
    await server.set_global_steps.remote(2, life)
    await soon(lambda: turns.routes.alive == [0, 1], 120)
    assert await asyncio.gather(*map(ask, states)) == said
    # From the broker it has what it was told in its earlier life, and what the other one was.
    assert replicas.stored(victim) >= len(states)
