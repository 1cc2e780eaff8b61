"""verl's SGLang server with turntree's draft worker: ``rollout.name=sglang``.

verl starts and calls SGLang as usual. This replica loads SGLang's plugins before verl builds SGLang's arguments, and
puts turn-level drafts (whole stored turns) in front of the engine. The plugin registers this replica in place of verl's
replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica

from turntree.agents.engines.served.remote_store import RemoteStore
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.sglang.answers import forget_aborted
from turntree.agents.engines.sglang.config import KEPT
from turntree.agents.engines.sglang.dialect import SglangDialect, reverifies_drafts
from turntree.agents.engines.sglang.worker.plugin import is_ours
from turntree.agents.engines.sglang.worker.store_calls import call_store
from turntree.agents.verl.serving.external_server import ExternalReplica, ExternalServer
from turntree.agents.verl.serving.restarts import retry_after_restart


class DraftingSglangServer(ExternalServer, SGLangHttpServer):
    _slept = False

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        super().__init__(*args, **kwargs)
        await self.relaunch()

    @retry_after_restart  # Ray looks for the mark on this override, not on the base class's method
    async def sleep(self) -> None:
        await super().sleep()
        self._slept = True

    async def has_slept(self) -> bool:
        """Return whether this process has ever freed its memory, which must be reallocated before a weight update."""
        return self._slept

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        await super().launch_server(*args, **kwargs)

    def engine_and_store(self) -> tuple[ServedTurns, RemoteStore | None] | None:
        if self.tokenizer_manager is None:  # only the first node of a replica serves requests
            return None
        drafts = is_ours(self.tokenizer_manager.server_args)
        return _ServerTurns(self), RemoteStore(self._call_store) if drafts else None

    async def _call_store(self, method: str, *args: Any) -> None:
        await call_store(self.tokenizer_manager, method, *args)

    async def draft_counters(self) -> Mapping[str, float]:
        states = await self.tokenizer_manager.get_internal_state()
        return states[0].get("turntree") or {}


class DraftingSglangReplica(ExternalReplica, SGLangReplica):
    server = DraftingSglangServer


class _ServerTurns(ServedTurns):
    gated = True  # see ``ServedTurns``

    def __init__(self, server: DraftingSglangServer) -> None:
        arguments = server.tokenizer_manager.server_args
        vocabulary = int(server.tokenizer_manager.model_config.vocab_size)
        super().__init__(
            SglangDialect(speculates=bool(arguments.speculative_algorithm), vocabulary=vocabulary),
            max_context=server.config.max_model_len - KEPT,
            vocabulary=vocabulary,
            priorities=arguments.enable_priority_scheduling,
        )
        self._server = server

    async def _ask(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        from sglang.srt.managers.io_struct import GenerateReqInput
        from verl.workers.rollout.sglang_rollout.utils import SGLANG_LORA_NAME

        request = GenerateReqInput(**asked, rid=name)
        if self._server.lora_as_adapter:
            request.lora_path = SGLANG_LORA_NAME
        answer: dict[str, Any] = await anext(self._server.tokenizer_manager.generate_request(request, None))
        forget_aborted(self._server.tokenizer_manager, answer)
        return answer

    async def _abort(self, names: Sequence[str]) -> None:
        for name in names:
            self._server.tokenizer_manager.abort_request(rid=name)

    async def _reverifies(self) -> bool:
        return reverifies_drafts(await self._server.tokenizer_manager.get_internal_state())
