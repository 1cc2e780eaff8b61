"""verl's servers of vLLM and SGLang, with turntree's turn-level drafts in front of their engine.

A turn-level draft is a whole stored turn that is offered to the engine as the draft of a new turn. The draft stores are
in the engines' processes. Each replica's server shares the stores' turns with other replicas, and saves the stores with
verl's checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import ray
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.served.remote_store import RemoteStore
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.serving.restarts import (
    RESTARTS,
    ServerLife,
    ask_for_weights,
    ask_if_alone,
    held,
    is_restarted,
    retry_after_restart,
)
from turntree.agents.verl.serving.turn_broker import BrokerClient, SharingReplica, broker_runs
from turntree.agents.verl.serving.turns import Replica, ServingTurns, TurnServer

#: fields of ``EngineStats`` that are computed from the turns
_TURN_COUNTERS = ("requests", "prompt_tokens", "cached_tokens", "tokens", "verify_steps", "drafted", "accepted")
#: the drafter's counters, and their names in ``EngineStats``
_DRAFTER_COUNTERS = {
    "steps": "forward_passes",
    "seconds": "seconds",
    "draft_seconds": "draft_seconds",
    "idle_seconds": "draft_idle_seconds",
    "imported_turns": "imported_turns",
    "imported_evicted": "imported_evicted",
}


class ExternalServer(ServingTurns):
    """Mix-in for verl's server classes; list it before verl's class.

    turntree's episodes request turns from a ``TurnServer``; verl's own agent loops call verl's ``generate``.

    The server precomputes turns of the next step in idle slots, from the start of a step until verl needs the engine
    idle: to sleep, to drain, or to load weights. The server then aborts these turns, so verl never waits for them.
    """

    config: Any
    model_config: Any = None
    replica_rank: int
    rollout_mode: RolloutMode
    workers: Any
    global_steps: Any
    _engine: Any = None

    def engine_and_store(self) -> tuple[ServedTurns, RemoteStore | None] | None:
        # Return ``None`` on a node that serves no requests (any but the replica's first); no store if turntree does not
        # draft.
        raise NotImplementedError

    async def relaunch(self) -> None:
        # Launch a restarted server; verl launches only new servers. The actor's constructor calls this method, so that
        # no other method can run before.
        if not is_restarted():
            return
        await self.launch_server()  # type: ignore[attr-defined]
        await self.serve_turns(shared=broker_runs())
        if self.rollout_mode is RolloutMode.COLOCATED:
            self._life.got_weights()  # this model is not trained, so the weights on disk are current
        elif self.rollout_mode is RolloutMode.STANDALONE:
            if len(self.workers) == 1:  # several workers can only send together, so one cannot resend
                ask_for_weights(self.workers[0])
        else:
            self._weights_request = asyncio.create_task(ask_if_alone(self.workers[0]))

    async def serve_turns(self, *, shared: bool) -> None:
        """Put turn-level drafts in front of the engine; call this method once, after the launch."""
        self._life = ServerLife(self.replica_rank)
        serving = self.engine_and_store()
        if serving is None:
            return
        engine, store = serving
        # The weights go directly to the engine's workers, so this process cannot save them.
        run = replace(RunSettings.parse(plain(self.config.custom)), save_policy_every=0)
        self._engine = engine
        slots = None
        if run.run_ahead.enabled:
            batch = self.config.max_num_seqs
            slots = IdleSlots(engine, batch=batch, slots=run.run_ahead.slots(batch))
        replica = Replica(
            rank=self.replica_rank,
            seed=self.config.seed + self.replica_rank,
            vocabulary=engine.vocabulary,
            max_context=engine.max_context or self.config.max_model_len,
            tokenizer=tokenizer_hash(self.model_config.local_path if self.model_config else ""),
            restarted=self._life.restarted,
        )
        sharing = BrokerClient(self.replica_rank) if shared else None
        self._turns = TurnServer(engine, run, replica, store=store, sharing=sharing, slots=slots)

    async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
        # Only verl's own agent loops and its reward loop call this.
        self._life.require_weights()
        output: TokenOutput = await super().generate(*args, **kwargs)  # type: ignore[misc]
        return output

    async def draft_counters(self) -> Mapping[str, float]:
        raise NotImplementedError

    async def begin_step(self, step: int) -> None:
        await super().begin_step(step)
        if self._turns is not None:
            self._turns.resume()  # from now on, turns of later steps are precomputed

    @retry_after_restart
    async def sleep(self) -> None:
        await self._end_precomputed()
        await super().sleep()  # type: ignore[misc]
        if self._turns is not None:  # the step's rollouts are done
            await self._turns.swap()

    @retry_after_restart
    async def wait_for_requests_to_drain(self) -> None:
        await self._end_precomputed()
        await super().wait_for_requests_to_drain()  # type: ignore[misc]

    @retry_after_restart
    async def release_kv_cache(self) -> None:
        await self._end_precomputed()
        await super().release_kv_cache()  # type: ignore[misc]

    @retry_after_restart
    async def abort_all_requests(self, *args: Any, **kwargs: Any) -> Any:
        await self._end_precomputed()
        return await super().abort_all_requests(*args, **kwargs)  # type: ignore[misc]

    async def _end_precomputed(self) -> None:
        if self._turns is not None:
            await self._turns.pause()

    async def set_global_steps(self, global_steps: int, life: str | None = None) -> None:
        """Close the step: the policy was trained on all turns sampled so far."""
        self._life.check(life)
        await super().set_global_steps(global_steps)  # type: ignore[misc]
        if self._turns is not None:
            self._engine.version = global_steps
            await self.close_step(global_steps)
        self._life.got_weights()

    async def engine_counters(self) -> dict[str, float]:
        # The names are those of ``EngineStats``; the time spent in the model is unknown.
        assert self._turns is not None
        drafter = await self.draft_counters()
        renamed = {stats_name: drafter[name] for name, stats_name in _DRAFTER_COUNTERS.items() if name in drafter}
        return {name: getattr(self._turns.engine.counted, name) for name in _TURN_COUNTERS} | renamed


class ExternalReplica(SharingReplica):
    server: ClassVar[type]
    server_class: Any
    model_config: Any
    servers: list[Any]
    nnodes: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A replica on several nodes cannot restart the server of one node alone.
        self.server_class = ray.remote(max_restarts=RESTARTS if self.nnodes == 1 else 0)(self.server)

    async def launch_servers(self) -> None:
        self.model_config = held(self.model_config)
        await super().launch_servers()  # type: ignore[misc]
        shared = self.join_broker() is not None
        await asyncio.gather(*(server.serve_turns.remote(shared=shared) for server in self.servers))
