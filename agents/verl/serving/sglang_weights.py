"""The weight side of ``rollout.name=sglang``: verl's, for a server that Ray may have restarted."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.sglang_rollout.sglang_rollout import ServerAdapter

from turntree.agents.verl.serving.restarts import RestartedServer


class SglangWeightSender(RestartedServer, ServerAdapter):  # type: ignore[misc]
    """verl's ``BaseRollout`` for SGLang; arguments are verl's. It reaches SGLang by an address, which each process of
    the server has its own of."""

    _life = ""
    _engine: Any
    server_actor: Any

    async def server(self) -> Any:
        """See ``RestartedServer``."""
        await self._init_server_adapter()
        if self._engine is None:
            return None
        life = await self.server_actor.ready.remote()
        if life != self._life:
            self._life, self._engine = life, None
            await self._init_server_adapter()
        return self.server_actor

    async def resume(self, tags: list[str]) -> None:
        """As verl's, where there is memory to take back: a restarted server has all of it from its start."""
        server = await self.server()
        if server is not None and await server.has_slept.remote():
            await super().resume(tags)
