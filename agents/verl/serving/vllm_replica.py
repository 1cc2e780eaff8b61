"""verl's vLLM server with turntree's drafter in it: ``rollout.name=vllm``.

verl starts and calls vLLM as usual; this puts turntree's uses of earlier turns
before the engine, and on the CPU replaces what needs a GPU. A server whose process or
whose engine dies is started again by Ray. Registered instead of verl's own replica, and
otherwise identical.
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
from turntree.agents.engines.vllm.dialect import (
    VllmDialect,
    VllmRequest,
    sampling_params,
    schedules_by_priority,
)
from turntree.agents.engines.vllm.drawing import model_runner
from turntree.agents.engines.vllm.orphans import announce_server
from turntree.agents.engines.vllm.worker import TurnCounters, ask_workers, summed
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.serving.external_server import ExternalReplica, ExternalServer

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_LOOK_SECONDS = 0.5
"""Time between two checks whether vLLM's engine is alive, seconds."""
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise one core is pinned per worker, even a busy one
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of the processes that vLLM starts, unless the caller has set them."""


class DraftingVllmServer(ExternalServer, vLLMHttpServer):
    """The class of the Ray actor; arguments are verl's."""

    _watch: asyncio.Task[None] | None = None

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        """As verl's; the replica launches the server, or a restarted one launches itself."""
        self._on_cpu = get_platform().device_name == "cpu"
        if self._on_cpu:
            for name, value in _CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        super().__init__(*args, **kwargs)
        self.draft_tokens = _draft_tokens((self.config.engine_kwargs or {}).get("vllm"))
        """Greatest length of a draft of turntree's, 0 if vLLM has another drafter or none."""
        self._counters_of_turns = TurnCounters(self._ask_workers)
        await self.relaunch()

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """As verl's, with an engine that ends with this process, and the other way round.

        Raises:
            RuntimeError: If the run's turns have seeds, which the engine would ignore.
        """
        announce_server()
        seeded = RunSettings.parse(plain(self.config.custom)).draws_by_seed
        if seeded:
            model_runner.choose_first()
        await super().launch_server(*args, **kwargs)
        if self.node_rank == 0:  # only the first node of a replica answers requests
            if seeded:
                model_runner.check_seeded(await self._ask_workers("turntree_draws_by_seed"))
            note_requests(self)
            self._watch = asyncio.create_task(_end_with(self.engine))

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        """As verl's, with vLLM's arguments for drafts on an accelerator."""
        super()._preprocess_engine_kwargs(engine_kwargs)
        if not self._on_cpu:
            ranks = self.config.tensor_model_parallel_size * self.config.pipeline_model_parallel_size
            given = {"max_num_batched_tokens": self.config.max_num_batched_tokens} | engine_kwargs
            engine_kwargs |= on_accelerator(given, rows=self.config.max_num_seqs, ranks=ranks)

    def engine_and_store(self) -> tuple[ServedTurns, RemoteStore | None] | None:
        """See ``ExternalServer``."""
        if self.node_rank != 0:
            return None
        return _ServerTurns(self), RemoteStore(self._call_store) if self.draft_tokens else None

    async def _call_store(self, method: str, *args: Any) -> None:
        await self._ask_workers("turntree_store", [method, *args])

    async def _ask_workers(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        return await self.alive(ask_workers(self.engine, method, args))

    async def alive(self, call: Awaitable[_T]) -> _T:
        """What ``call`` of the engine gives; if that fails as the engine has died, this process ends."""
        try:
            return await call
        except Exception:
            _end_if_dead(self.engine)
            raise

    async def draft_stats(self, request_id: str) -> DraftStats:
        """The drafter's counters of a request."""
        return await self._counters_of_turns.of(request_id)

    async def draft_counters(self) -> Mapping[str, float]:
        """Counters of the drafter since its start."""
        return summed(await self._ask_workers("turntree_drafter_stats"))

    def _get_worker_extension_cls(self) -> str:
        name = "CpuWorkerExtension" if self._on_cpu else "DraftingWorkerExtension"
        return f"turntree.agents.verl.serving.vllm_weights.{name}"


class DraftingVllmReplica(ExternalReplica, vLLMReplica):
    """Starts ``DraftingVllmServer``; arguments are verl's."""

    server = DraftingVllmServer


async def _end_with(engine: Any) -> None:
    """End this process when vLLM's engine has died: nothing of it can be used any more, and Ray starts both again."""
    while True:
        _end_if_dead(engine)
        await asyncio.sleep(_LOOK_SECONDS)


def _end_if_dead(engine: Any) -> None:
    if engine.errored:
        logger.error("vLLM's engine died, so its server ends")
        os._exit(1)


def _draft_tokens(engine_kwargs: Mapping[str, Any] | None) -> int:
    """Greatest length of a draft if vLLM is given turntree's drafter, else 0."""
    from turntree.agents.engines.vllm.settings import drafts_by_turntree

    speculative = (engine_kwargs or {}).get("speculative_config") or {}
    return int(speculative["num_speculative_tokens"]) if drafts_by_turntree(speculative) else 0


class _Asked:
    """A request to vLLM that is sent through verl's server."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        """Its parameters."""
        self.output: Any = None
        """What vLLM reported of it last."""
        self.landed = False
        """Whether vLLM has it, and verl's server, which waits for an output of it, knows."""


_ASKED: ContextVar[_Asked | None] = ContextVar("asked", default=None)
"""Context variable for the request being sent: verl's server passes on few parameters, and keeps only tokens."""


def note_requests(server: Any) -> None:
    """Let the engine of verl's server take turntree's own parameters of a request, and note its output.

    verl 0.9.1 knows by a request's first output that vLLM has it, and turntree's requests have one at their end alone:
    an abort waits up to a minute for those under way (``_admitting``), so they are counted off when vLLM has them.
    Other requests are left as they are.

    Args:
        server: A launched ``vLLMHttpServer``.
    """
    engine = server.engine
    generate, add_request = engine.generate, engine.add_request

    async def add_noted(*args: Any, **kwargs: Any) -> Any:
        added = await add_request(*args, **kwargs)
        asked = _ASKED.get()
        if asked is not None:
            asked.landed = True
            server._admitting -= 1
        return added

    async def generate_noted(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        asked = _ASKED.get()
        if asked is not None:
            kwargs["sampling_params"] = sampling_params(asked.fields)
        try:
            async for output in generate(*args, **kwargs):
                if asked is not None:
                    asked.output = output
                    _count_back(server, asked)
                yield output
        finally:
            if asked is not None:
                _count_back(server, asked)

    engine.generate, engine.add_request = generate_noted, add_noted


def _count_back(server: Any, asked: _Asked) -> None:
    """verl's server counts the request off itself now."""
    server._admitting += asked.landed
    asked.landed = False


class _ServerTurns(ServedTurns):
    """verl's server as a ``ScoringEngine``: its gate, its adapters, its abortion of requests."""

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
        sent, parameters = _Asked(asked.fields), {"max_tokens": asked.fields["max_tokens"]}
        before = _ASKED.set(sent)
        try:
            call = vLLMHttpServer.generate(self._server, asked.prompt, parameters, name, priority=asked.priority)
            await self._server.alive(call)
        finally:
            _ASKED.reset(before)
        return sent.output

    async def _abort(self, names: Sequence[str]) -> None:
        await self._server.engine.abort(list(names))

    async def _counters(self, name: str, tokens: int) -> DraftStats:
        return await self._server.draft_stats(name) if self._server.draft_tokens else DraftStats(verify_steps=tokens)
