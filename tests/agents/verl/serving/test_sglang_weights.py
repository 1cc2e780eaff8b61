from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.sglang


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer
    from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

    found: list[Any] = []

    async def resume(self: Any, tags: list[str]) -> None:
        found.append((self._engine.life, tags))

    async def sleep(self: Any) -> None:
        found.append("slept")

    async def connect(self: Any) -> None:
        self._engine = self._engine or SimpleNamespace(life=self.server_actor.life)

    monkeypatch.setattr(ServerAdapter, "resume", resume)
    monkeypatch.setattr(ServerAdapter, "_init_server_adapter", connect)
    monkeypatch.setattr(SGLangHttpServer, "sleep", sleep)
    return found


class Actor:
    def __init__(self) -> None:
        self.restart()
        self.ready = SimpleNamespace(remote=self.say_ready)
        self.has_slept = SimpleNamespace(remote=lambda: self.server.has_slept())

    def restart(self) -> None:
        from turntree.agents.verl.serving.sglang_replica import DraftingSglangServer

        self.server: Any = DraftingSglangServer.__new__(DraftingSglangServer)
        self.life = f"{id(self.server)}"

    async def say_ready(self) -> str:
        return self.life


async def test_a_server_takes_back_what_it_gave_and_a_restarted_one_has_given_nothing(taken: list[Any]) -> None:
    from turntree.agents.verl.serving.sglang_weights import SglangWeightSender

    sender, actor = SglangWeightSender.__new__(SglangWeightSender), Actor()
    sender._engine, sender.server_actor = None, actor
    await actor.server.sleep()
    await sender.resume(["weights"])
    assert taken == ["slept", (actor.life, ["weights"])]

    actor.restart()
    await sender.resume(["weights"])
    assert len(taken) == 2, "it has all of its memory from its start"
    await actor.server.sleep()
    await sender.resume(["weights"])
    assert taken[2:] == ["slept", (actor.life, ["weights"])], "by the address of the new process"
