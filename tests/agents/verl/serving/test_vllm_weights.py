import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from machine_speed import patience
from ray.exceptions import ActorUnavailableError

from turntree.agents.verl.serving.restarts import RESEND

pytestmark = pytest.mark.vllm


class Server:
    def __init__(self, lost: bool = False) -> None:
        self.lost = lost
        self.steps: list[tuple[int, str]] = []
        self.ready = SimpleNamespace(remote=self.say_ready)
        self.set_global_steps = SimpleNamespace(remote=self.take_step)

    async def say_ready(self) -> str:
        if self.lost:
            raise ActorUnavailableError("killed", None)
        return "this life"

    async def take_step(self, step: int, life: str) -> None:
        self.steps.append((step, life))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    found: list[Any] = []

    async def update_weights(self: Any, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
        found.append((list(weights), global_steps, kwargs))

    monkeypatch.setattr(ServerAdapter, "update_weights", update_weights)
    return found


def sender(server: Server) -> Any:
    from turntree.agents.verl.serving.vllm_weights import VllmWeightSender

    made = VllmWeightSender.__new__(VllmWeightSender)
    made._has_server, made.server_handle, made.replica_rank = True, server, 0
    made._sending = asyncio.Lock()
    return made


async def test_a_restarted_server_is_sent_the_last_step_again(sent: list[Any]) -> None:
    server = Server()
    one = sender(server)
    await one.update_weights(iter("ab"), global_steps=3, peft_config=None)
    await one.update_weights(iter("ab"), global_steps=RESEND, peft_config=None)
    assert server.steps == [(3, "this life")] * 2
    assert sent == [(["a", "b"], None, {"peft_config": None})] * 2  # the step is told with the life, by us alone


async def test_weights_for_a_lost_server_are_gathered_all_the_same(sent: list[Any]) -> None:
    weights = iter("ab")
    await sender(Server(lost=True)).update_weights(weights, global_steps=3)
    assert sent == []
    assert next(weights, None) is None


DYING = """
import os, sys, zmq
server = zmq.Context().socket(zmq.REP)
server.connect(sys.argv[1])
for _ in range(2):  # the buffer's name, then the first bucket
    server.recv()
    server.send(b"")
server.recv()
open(sys.argv[2], "w").close()
os._exit(1)
"""


async def test_a_server_that_dies_with_weights_on_their_way_is_given_up(tmp_path, monkeypatch, caplog):
    from turntree.agents.verl.serving import vllm_weights

    ended: list[Any] = []
    monkeypatch.setattr(vllm_weights, "SECONDS", patience(3))
    monkeypatch.setattr("ray.kill", lambda server, no_restart: ended.append((server, no_restart)))
    dead = tmp_path / "dead"

    async def begin(*args: Any, **kwargs: Any) -> None:
        await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, one.zmq_handle, str(dead))

    one = sender(Server())
    one.zmq_handle, one.use_shm, one._execute_method = f"ipc://{tmp_path}/weights", True, begin
    one.config = SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1))
    weights = ((name, torch.zeros(1 << 18)) for name in "abcd")
    with caplog.at_level("WARNING"):
        await one.update_weights(weights, global_steps=3)
    assert "the server has not taken a bucket of weights" in caplog.text
    assert next(weights, None) is None
    assert dead.exists(), "it took a bucket before"
    assert (one.server_handle.steps, ended) == ([], [(one.server_handle, False)])
    with zmq.Context.instance().socket(zmq.REQ) as other:
        assert (other.sndtimeo, other.rcvtimeo) == (-1, -1)
