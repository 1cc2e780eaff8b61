"""verl's own servers of vLLM and SGLang with turntree's uses of earlier turns in front of their engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.engines.sglang.turns import SglangTurns
from turntree.agents.engines.vllm.turns import VllmTurns
from turntree.agents.reuse.reuse_config import ReuseMode
from turntree.agents.reuse.run_ahead_slots import IdleSlots
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.serving.turn_pipe import NumberedRequest, TurnBatchServer, TurnReply
from turntree.agents.verl.serving.turn_server import TurnServer, TurnStore
from turntree.agents.verl.serving.verl_types import to_request, to_token_output
from turntree.spec_tree import DialogueState

_OF_TURNS = ("requests", "prompt_tokens", "cached_tokens", "tokens", "verify_steps", "drafted", "accepted")
"""Counters of ``EngineStats`` that the turns tell."""
_OF_DRAFTER = {"steps": "forward_passes", "draft_seconds": "draft_seconds"}
"""Counters of the drafter, and their names in ``EngineStats``."""


class ExternalServer:
    """Methods of a Ray actor, in front of those of verl's server class.

    A request of turntree's agent loop goes through a ``TurnServer`` if the run reuses earlier turns, runs ahead or
    couples its validations; any other goes to verl's own ``generate``.

    Precomputed turns run only from a step's begin until verl wants the engine idle: to sleep, to drain, to take
    weights. They are then ended first, and hold nothing up.
    """

    config: Any
    replica_rank: int
    global_steps: Any
    _turns: TurnServer | None = None
    _engine: Any = None
    _counted: _CountedTurns
    _desk: TurnBatchServer

    def serve_turns(self, engine: VllmTurns | SglangTurns, *, store: TurnStore | None) -> None:
        """Put turntree's uses of earlier turns before the engine, if the run has any.

        Args:
            engine: verl's server as an engine.
            store: The engine's store of drafts.
        """
        run = RunSettings.parse(plain(self.config.custom))
        if run.reuse.mode is ReuseMode.NONE and not run.validation.coupled and not run.run_ahead.enabled:
            return
        run = replace(run, save_policy_every=0)  # the weights do not come through this process
        self._engine = engine
        batch = self.config.max_num_seqs
        slots = IdleSlots(engine, batch=batch, slots=run.run_ahead.slots(batch)) if run.run_ahead.enabled else None
        self._turns = TurnServer(
            slots or engine,
            run,
            rank=self.replica_rank,
            seed=self.config.seed + self.replica_rank,
            vocabulary=engine.vocabulary,
            max_context=engine.max_context or self.config.max_model_len,
            store=store,
        )
        self._counted = _CountedTurns(self._turns)
        self._desk = TurnBatchServer(self._counted)

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> TokenOutput:
        """As verl's; a turn of turntree's agent loop may begin with a stored one."""
        request = None
        if self._turns is not None:
            request = to_request(prompt_ids, sampling_params, default_max_tokens=self.config.response_length)
        if self._turns is None or request is None:
            return await self.generate_plainly(prompt_ids, sampling_params, request_id, *args, **kwargs)
        return to_token_output(await self._counted.generate(request), self.global_steps)

    async def generate_plainly(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> TokenOutput:
        """verl's own ``generate``, with the drafter's counters."""
        raise NotImplementedError

    async def draft_counters(self) -> Mapping[str, float]:
        """Counters of the engine's drafter since its start, under the names of ``DraftCounts``."""
        raise NotImplementedError

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """Start turns for a ``TurnPipe``; returns the id by which they are collected."""
        return self._desk.submit(client, requests)

    async def collect_turns(self, client: str, life: str) -> list[TurnReply]:
        """Finished turns of a ``TurnPipe``, at least one."""
        return await self._desk.collect(client, life)

    async def serving(self) -> None:
        """Nothing to wait for: a server of verl's that was lost does not come back."""

    async def announce(self, states: Sequence[DialogueState]) -> None:
        """Nothing to prepare: the store of drafts, in the engine's processes, does so when a turn begins."""

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` is about to request its turns; returns once none is precomputed for it."""
        if self._turns is not None:
            await self._turns.begin_step(step)
            self._turns.resume()

    async def sleep(self) -> None:
        """As verl's, without precomputed turns."""
        await self._end_precomputed()
        await super().sleep()  # type: ignore[misc]

    async def wait_for_requests_to_drain(self) -> None:
        """As verl's vLLM server's, without precomputed turns."""
        await self._end_precomputed()
        await super().wait_for_requests_to_drain()  # type: ignore[misc]

    async def release_kv_cache(self) -> None:
        """As verl's, without precomputed turns."""
        await self._end_precomputed()
        await super().release_kv_cache()  # type: ignore[misc]

    async def abort_all_requests(self, *args: Any, **kwargs: Any) -> Any:
        """As verl's; precomputed turns keep their tokens and stay paused."""
        await self._end_precomputed()
        return await super().abort_all_requests(*args, **kwargs)  # type: ignore[misc]

    async def _end_precomputed(self) -> None:
        if self._turns is not None:
            await self._turns.pause()

    async def set_global_steps(self, global_steps: int) -> None:
        """As verl's, and close the step of stored turns: what was sampled until now was trained on."""
        await super().set_global_steps(global_steps)  # type: ignore[misc]
        if self._turns is not None:
            self._engine.version = global_steps
            await self._turns.close_step(global_steps, await self._counters())

    async def save_state(self, folder: str, step: int) -> None:
        """Write the state that outlives this process; ``step`` updates were made.

        Raises:
            OSError: If it cannot be written.
        """
        if self._turns is not None:
            await self._turns.save_state(Path(folder), step)

    async def step_counters(self) -> dict[str, float]:
        """Counters since the last call, for verl's log; see ``metrics``."""
        return {} if self._turns is None else self._turns.read_counters(await self._counters())

    async def _counters(self) -> dict[str, float]:
        """Counters of turns and drafter since the start, under the names of the local engine's; its times are not
        known here."""
        drafter = await self.draft_counters()
        spent = {ours: drafter[theirs] for theirs, ours in _OF_DRAFTER.items() if theirs in drafter}
        return {name: getattr(self._counted.stats, name) for name in _OF_TURNS} | spent


class _CountedTurns:
    """An ``Engine`` that counts the turns of another, precomputed ones left out."""

    def __init__(self, turns: Engine) -> None:
        self._turns = turns
        self.stats = EngineStats()

    async def generate(self, request: TurnRequest) -> Completion:
        turn = await self._turns.generate(request)
        if not request.ahead_for:
            self._count(request, turn)
        return turn

    def _count(self, request: TurnRequest, turn: Completion) -> None:
        stats = self.stats
        stats.requests += 1
        stats.prompt_tokens += len(request.prompt_ids)
        stats.cached_tokens += turn.cached_tokens
        stats.tokens += len(turn.token_ids)
        stats.verify_steps += turn.draft.verify_steps
        stats.drafted += turn.draft.drafted
        stats.accepted += turn.draft.accepted
