"""The trainer's side of ``rollout.name=sglang``: verl's weight sender, for a server that Ray may restart."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

from turntree.agents.verl.serving.restarts import RestartedServer


class SglangWeightSender(RestartedServer, ServerAdapter):  # type: ignore[misc]
    _life = ""
    _engine: Any
    server_actor: Any

    async def server(self) -> Any:
        await self._init_server_adapter()
        if self._engine is None:
            return None
        # The adapter connects to SGLang by address, and each process of the server has a new address.
        life = await self.server_actor.ready.remote()
        if life != self._life:
            self._life, self._engine = life, None
            await self._init_server_adapter()
        return self.server_actor

    async def resume(self, tags: list[str]) -> None:
        # A restarted server has never freed its memory, so there is nothing to reallocate.
        server = await self.server()
        if server is not None and await server.has_slept.remote():
            await super().resume(tags)
