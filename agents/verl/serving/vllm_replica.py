"""verl's vLLM server with turntree's drafter: ``rollout.name=vllm``.

verl starts and calls vLLM as usual. This replica puts turn-level drafts (whole stored turns) in front of the engine. On
the CPU it also replaces the parts that need a GPU. If the server's process or its engine dies, Ray restarts the server.
The plugin registers this replica in place of verl's replica.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from verl.plugin.platform import get_platform
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from turntree.agents.engines.protocol import DraftStats
from turntree.agents.engines.served.remote_store import RemoteStore
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.vllm.config import on_accelerator
from turntree.agents.engines.vllm.dialect import VllmDialect, VllmRequest, sampling_params, schedules_by_priority
from turntree.agents.engines.vllm.drawing import model_runner
from turntree.agents.engines.vllm.orphans import announce_server
from turntree.agents.engines.vllm.worker import TurnCounters, ask_workers, summed
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.serving.external_server import ExternalReplica, ExternalServer

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_CHECK_SECONDS = 0.5  #: between two checks of whether vLLM's engine is alive
#: environment of the processes that vLLM starts; variables that the caller has set take precedence
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise vLLM pins each worker to one core, even a busy core
    "VLLM_NO_USAGE_STATS": "1",
}


class DraftingVllmServer(ExternalServer, vLLMHttpServer):
    _watch: asyncio.Task[None] | None = None

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        self._on_cpu = get_platform().device_name == "cpu"
        if self._on_cpu:
            for name, value in _CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        super().__init__(*args, **kwargs)
        self.draft_tokens = _draft_tokens((self.config.engine_kwargs or {}).get("vllm"))
        self._turn_counters = TurnCounters(self._ask_workers)
        await self.relaunch()

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        announce_server()
        seeded = RunSettings.parse(plain(self.config.custom)).draws_by_seed
        if seeded:
            model_runner.choose_first()
        await super().launch_server(*args, **kwargs)
        if self.node_rank == 0:  # only the first node of a replica serves requests
            if seeded:
                model_runner.check_seeded(await self._ask_workers("turntree_draws_by_seed"))
            note_requests(self)
            self._watch = asyncio.create_task(_exit_with(self.engine))

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        if not self._on_cpu:
            ranks = self.config.tensor_model_parallel_size * self.config.pipeline_model_parallel_size
            settings = {"max_num_batched_tokens": self.config.max_num_batched_tokens} | engine_kwargs
            engine_kwargs |= on_accelerator(settings, rows=self.config.max_num_seqs, ranks=ranks)

    def engine_and_store(self) -> tuple[ServedTurns, RemoteStore | None] | None:
        if self.node_rank != 0:
            return None
        return _ServerTurns(self), RemoteStore(self._call_store) if self.draft_tokens else None

    async def _call_store(self, method: str, *args: Any) -> None:
        await self._ask_workers("turntree_store", [method, *args])

    async def _ask_workers(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        return await self.alive(ask_workers(self.engine, method, args))

    async def alive(self, call: Awaitable[_T]) -> _T:
        """Await a call to the engine; if the call fails because the engine has died, end this process."""
        try:
            return await call
        except Exception:
            _exit_if_dead(self.engine)
            raise

    async def draft_stats(self, request_id: str) -> DraftStats:
        return await self._turn_counters.of(request_id)

    async def draft_counters(self) -> Mapping[str, float]:
        return summed(await self._ask_workers("turntree_drafter_stats"))

    def _get_worker_extension_cls(self) -> str:
        name = "CpuWorkerExtension" if self._on_cpu else "DraftingWorkerExtension"
        return f"turntree.agents.verl.serving.vllm_weights.{name}"


class DraftingVllmReplica(ExternalReplica, vLLMReplica):
    server = DraftingVllmServer


async def _exit_with(engine: Any) -> None:
    # A dead engine cannot be revived, so end this process, too: Ray then restarts both.
    while True:
        _exit_if_dead(engine)
        await asyncio.sleep(_CHECK_SECONDS)


def _exit_if_dead(engine: Any) -> None:
    if engine.errored:
        logger.error("vLLM's engine died; ending its server so that Ray restarts both")
        os._exit(1)


# Returns the longest draft of turntree's drafter in tokens; 0 if vLLM has another drafter or none.
def _draft_tokens(engine_kwargs: Mapping[str, Any] | None) -> int:
    from turntree.agents.engines.vllm.settings import drafts_by_turntree

    speculative = (engine_kwargs or {}).get("speculative_config") or {}
    return int(speculative["num_speculative_tokens"]) if drafts_by_turntree(speculative) else 0


class _SentRequest:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields  # turntree's request parameters
        self.output: Any = None  # vLLM's last output for the request
        self.admitted = False  # whether vLLM has the request and ``_admitting`` no longer counts it


# verl's server forwards few request parameters and returns only tokens, so this variable carries the rest.
_SENT: ContextVar[_SentRequest | None] = ContextVar("sent", default=None)


def note_requests(server: Any) -> None:
    """Make the engine of verl's server read turntree's request parameters, and record the engine's output.

    verl 0.9.1 counts requests without any output yet (``_admitting``), and an abort waits up to a minute for such
    requests. A request of turntree has a single output, at the request's end. The counter is therefore decremented as
    soon as vLLM has the request. Other requests are unchanged.
    """
    engine = server.engine
    generate, add_request = engine.generate, engine.add_request

    async def add_noted(*args: Any, **kwargs: Any) -> Any:
        added = await add_request(*args, **kwargs)
        sent = _SENT.get()
        if sent is not None:
            sent.admitted = True
            server._admitting -= 1
        return added

    async def generate_noted(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        sent = _SENT.get()
        if sent is not None:
            kwargs["sampling_params"] = sampling_params(sent.fields)
        try:
            async for output in generate(*args, **kwargs):
                if sent is not None:
                    sent.output = output
                    _recount(server, sent)
                yield output
        finally:
            if sent is not None:
                _recount(server, sent)

    engine.generate, engine.add_request = generate_noted, add_noted


def _recount(server: Any, sent: _SentRequest) -> None:
    # verl's server also decrements the counter after the output, so undo the decrement of ``add_noted``.
    server._admitting += sent.admitted
    sent.admitted = False


class _ServerTurns(ServedTurns):
    gated = True

    def __init__(self, server: DraftingVllmServer) -> None:
        super().__init__(
            VllmDialect(speculates=server.draft_tokens > 0),
            max_context=server.config.max_model_len,
            vocabulary=server.engine.model_config.get_vocab_size(),
            priorities=schedules_by_priority(server.engine),
        )
        self._server = server

    async def _ask(self, name: str, asked: VllmRequest) -> Any:
        # Call verl's ``generate`` so that verl's gate, adapters and aborts still apply.
        sent, parameters = _SentRequest(asked.fields), {"max_tokens": asked.fields["max_tokens"]}
        before = _SENT.set(sent)
        try:
            call = vLLMHttpServer.generate(self._server, asked.prompt, parameters, name, priority=asked.priority)
            await self._server.alive(call)
        finally:
            _SENT.reset(before)
        return sent.output

    async def _abort(self, names: Sequence[str]) -> None:
        await self._server.engine.abort(list(names))

    async def _counters(self, name: str, tokens: int) -> DraftStats:
        return await self._server.draft_stats(name) if self._server.draft_tokens else DraftStats(verify_steps=tokens)
