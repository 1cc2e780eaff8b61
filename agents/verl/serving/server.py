"""The server of ``rollout.name=turntree``: the local engine in a Ray actor.

The actor lives for the whole run, and so does its ``SpecForest``: a weight
update drops keys and values and keeps the sampled turns, from which later steps
draft. One call is one turn, token ids in and token ids out.

Not covered: more than one device per replica, LoRA adapters, quantised
rollouts, images.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.monitors import MonitoredEngine, Monitors
from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.reuse.prefix_reuse import PrefixReuse
from turntree.agents.reuse.reuse_config import ReuseMode
from turntree.agents.reuse.run_ahead import RunAhead
from turntree.agents.verl.config.exchange_settings import ExchangeSettings
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings, RunSettings
from turntree.agents.verl.serving.checkpoint_state import ServerState, checkpoint_folder, state_folder
from turntree.agents.verl.serving.hub import HubExchange
from turntree.agents.verl.serving.restarts import ask_for_weights, is_restarted, retry_after_restart
from turntree.agents.verl.serving.sharing import SharingEngine
from turntree.agents.verl.serving.step_counters import StepCounters
from turntree.agents.verl.serving.turn_pipe import NumberedRequest, TurnBatchServer, TurnReply
from turntree.agents.verl.serving.verl_types import to_sampling, to_token_output
from turntree.spec_tree import DialogueState
from turntree.spec_tree.exchange.exchange import SharedTurns

logger = logging.getLogger(__name__)


class TurntreeServer:
    """The class of the Ray actor.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration; its ``path`` is loaded.
        replica_rank: Rank of the replica; moves the seed.
        trainer: The trainer's only process, which a restarted server asks for the weights. ``None`` waits for the
            next update.
        exchange: Settings of the exchange of turns through the hub; ``None`` exchanges none.
    """

    def __init__(
        self,
        config: Any,
        model_config: Any,
        replica_rank: int,
        trainer: Any = None,
        exchange: ExchangeSettings | None = None,
    ) -> None:
        from verl.utils.fs import copy_to_local

        from turntree.agents.engines.local import LocalEngine

        settings = EngineSettings.parse(plain(config.engine_kwargs.get("turntree")))
        self._max_tokens = config.response_length
        engine_config = settings.engine_config(
            max_batch=config.max_num_seqs,
            max_context=config.max_model_len or config.prompt_length + config.response_length,
            dtype=str(config.dtype).removeprefix("torch."),
            seed=config.seed + replica_rank,
        )
        run = RunSettings.parse(plain(config.custom))
        if run.run_ahead.enabled:
            engine_config = replace(engine_config, ahead_slots=run.run_ahead.slots(config.max_num_seqs))
        path = copy_to_local(model_config.path, use_shm=model_config.get("use_shm", False))
        self.engine = LocalEngine.from_pretrained(path, config=engine_config, forest=settings.forest)
        self._ahead = RunAhead(self.engine, run.run_ahead) if run.run_ahead.enabled else None
        self._reuse = None
        if run.reuse.mode is not ReuseMode.NONE:
            forest = self.engine.forest
            self._reuse = PrefixReuse(
                self._ahead or self.engine,
                run.reuse,
                vocabulary=self.engine.vocabulary,
                max_context=self.engine.config.max_context,
                remember=None if forest is None else forest.insert,
                ready=None if self._ahead is None else self._ahead.ready,
                seed=config.seed + replica_rank,
            )
        monitors = Monitors()
        self._shared: SharedTurns | None = None
        if exchange is not None and self.engine.forest is not None:
            self._shared = SharedTurns(self.engine.forest, HubExchange(replica_rank))
        self._turns: Engine = MonitoredEngine(self._reuse or self._ahead or self.engine, monitors)
        if self._shared is not None:
            self._turns = SharingEngine(self._turns, self._shared)
        self._desk = TurnBatchServer(self._turns, None if self._ahead is None else self._sample_ahead)
        self._books = StepCounters(run, replica_rank, monitors, self._reuse, self._ahead)
        self._state = ServerState(self.engine.forest, self._reuse, self._ahead)
        # A restarted server loads nothing: turns of the checkpoint may have been used since.
        self._resumable = bool(run.checkpoint_dir) and not is_restarted()
        self._checkpoints = Path(run.checkpoint_dir)
        self._rank = replica_rank
        self._global_steps = 0
        self._running = asyncio.Event()
        self._running.set()
        self._rejecting = False
        self._life = uuid4().hex
        self._current = asyncio.Event()
        if is_restarted():
            logger.warning("engine replica %d was restarted; it serves once it has the weights again", replica_rank)
            if trainer is not None:
                ask_for_weights(trainer)
        else:
            self._current.set()

    @retry_after_restart
    async def ready(self) -> str:
        """Wait until the model is loaded; returns an id of this process of the server."""
        return self._life

    async def serving(self) -> None:
        """Wait until the weights are the trainer's, which a restarted server does not have at first."""
        await self._current.wait()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        *,
        state: DialogueState | None = None,
    ) -> TokenOutput:
        """Sample one turn after ``prompt_ids``.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            sampling_params: verl's names, see ``to_sampling``.
            request_id: verl's name of the request; the engine needs none.
            image_data: Must be ``None``.
            video_data: Must be ``None``.
            state: The dialogue state, for the drafter.
        """
        if image_data or video_data:
            raise ConfigError("the turntree engine reads only text; use rollout.name=vllm or sglang for images")
        if self._rejecting:
            raise RuntimeError("the rollout server takes no requests until resume_generation()")
        await self._current.wait()
        await self._running.wait()
        sampling = to_sampling(sampling_params, default_max_tokens=self._max_tokens)
        completion = await self._turns.generate(TurnRequest(tuple(prompt_ids), sampling, state=state))
        return to_token_output(completion, self._global_steps)

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """Start turns for a ``TurnPipe``; returns the id by which they are collected.

        Raises:
            EngineLost: If the server was restarted and has no weights yet.
        """
        if not self._current.is_set():
            raise EngineLost("it was restarted and has no weights yet")
        await self._running.wait()
        return self._desk.submit(client, requests)

    async def collect_turns(self, client: str, life: str) -> list[TurnReply]:
        """Finished turns of a ``TurnPipe``, at least one."""
        return await self._desk.collect(client, life)

    async def update_weights(self, named: Mapping[str, Any], life: str | None = None) -> None:
        """Copy a bucket of weights in place.

        Args:
            named: Tensors by their Hugging Face names.
            life: The id that ``ready`` returned when the update began; ``None`` does not check.

        Raises:
            EngineLost: If the server was restarted since.
        """
        self._check_life(life)
        if self._ahead is not None:
            await self._ahead.pause()
        self._books.collect(named)
        await asyncio.to_thread(self.engine.update_weights, list(named.items()), version=self._global_steps)

    async def set_global_steps(self, global_steps: int, life: str | None = None) -> None:
        """Set the version of the weights to ``global_steps``, and close the counters of that step.

        Args:
            global_steps: Updates that the trainer has made.
            life: As in ``update_weights``.
        """
        self._check_life(life)
        self._global_steps = global_steps
        # The buckets came under the last version: verl gives the new one when all have arrived.
        await asyncio.to_thread(self.engine.update_weights, (), version=global_steps)
        await self._resume_once(global_steps)
        if self._shared is not None:
            await asyncio.to_thread(self._shared.swap)
        self._books.close_step(global_steps, self.engine.stats(), None if self._shared is None else self._shared.counts)
        if self._ahead is not None:
            self._ahead.resume()
        self._current.set()

    async def announce(self, states: Sequence[DialogueState]) -> None:
        """Let the store prepare, in the background, for turns that will soon begin at ``states``."""
        if self.engine.forest is not None:
            self.engine.forest.announce(states)

    async def _resume_once(self, step: int) -> None:
        """Load the checkpoint's stores if the first weights are those of a resumed run."""
        if not self._resumable:
            return
        self._resumable = False
        if step == 0:
            return
        folder = state_folder(checkpoint_folder(self._checkpoints, step), self._rank)
        if folder.is_dir():
            await asyncio.to_thread(self._state.read, folder, step=step)
        else:
            logger.warning("the run resumes at step %d with empty stores: %s does not exist", step, folder)

    async def save_state(self, folder: str, step: int) -> None:
        """Write the state that outlives this process; ``step`` updates were made.

        Raises:
            OSError: If it cannot be written.
        """
        if self._ahead is not None:
            await self._ahead.pause()
        try:
            await asyncio.to_thread(self._state.write, Path(folder), self._state.collect(), step=step)
        finally:
            if self._ahead is not None:
                self._ahead.resume()

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` is about to request its turns; returns once none is precomputed for it."""
        if self._ahead is not None:
            await self._ahead.begin_step(step)

    async def _sample_ahead(self, request: TurnRequest) -> Completion:
        assert self._ahead is not None
        sampling, seed = request.sampling, request.sampling.seed
        if self._reuse is not None and seed is not None:
            # By then so many more steps are closed, each of which changes the noise of a seed.
            after = request.ahead_for - 1 - self._global_steps
            sampling = replace(sampling, seed=self._reuse.base_seed(seed, after=after))
        return await self._ahead.sample_ahead(request.prompt_ids, sampling, step=request.ahead_for, state=request.state)

    def _check_life(self, life: str | None) -> None:
        if life is not None and life != self._life:
            raise EngineLost("it was restarted during an update of its weights")

    async def step_counters(self) -> dict[str, float]:
        """Counters since the last call, for verl's log; see ``metrics``."""
        return self._books.read(self.engine.stats(), None if self._shared is None else self._shared.counts)

    @retry_after_restart
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End running requests and hold (or reject) new ones until ``resume_generation``."""
        self._running.clear()
        self._rejecting = reject_request
        if self._ahead is not None:
            await self._ahead.pause()
        aborted = await asyncio.to_thread(self.engine.abort_all)
        return {"aborted_count": aborted, "request_ids": []}

    @retry_after_restart
    async def resume_generation(self) -> None:
        """Take requests again."""
        self._rejecting = False
        if self._ahead is not None:
            self._ahead.resume()
        self._running.set()

    @retry_after_restart
    async def clear_kv_cache(self) -> None:
        """Drop all keys and values; the store is kept."""
        await asyncio.to_thread(self.engine.reset_prefix_cache)

    release_kv_cache = clear_kv_cache

    @retry_after_restart
    async def sleep(self) -> None:
        """The rollouts of a step are done: drop all keys and values, and stop run-ahead if it is to stop now."""
        if self._ahead is not None and not self._ahead.config.during_update:
            await self._ahead.pause()
        await asyncio.to_thread(self.engine.reset_prefix_cache)
        if self._shared is not None:  # all send here, and fetch when the weights come: no replica is a step behind
            await asyncio.to_thread(self._shared.swap)

    @retry_after_restart
    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Nothing to do: no memory was released."""

    @retry_after_restart
    async def resume_kv_cache(self) -> None:
        """Nothing to do: no memory was released."""

    @retry_after_restart
    async def start_profile(self, **kwargs: Any) -> None:
        """The engine has no profiler of its own."""

    @retry_after_restart
    async def stop_profile(self) -> None:
        """The engine has no profiler of its own."""
