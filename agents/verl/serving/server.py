"""The server of ``rollout.name=turntree``: the local engine in a Ray actor.

The actor lives for the whole run, and so does its ``SpecForest``: a weight
update drops keys and values and keeps the sampled turns, from which later steps
draft. One call is one turn, token ids in and token ids out. With
``free_cache_engine`` the trainer has the device's memory while the actor sleeps.

Not covered: more than one device per replica, LoRA adapters, quantised
rollouts, images.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.protocol import TurnRequest
from turntree.agents.evaluation.machine import hardware
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings, RunSettings, SharingSettings
from turntree.agents.verl.serving.restarts import ServerLife, ask_for_weights, retry_after_restart
from turntree.agents.verl.serving.turn_broker import BrokerClient
from turntree.agents.verl.serving.turn_pipe import NumberedRequest
from turntree.agents.verl.serving.turn_server import Replica, ServingTurns, TurnServer
from turntree.agents.verl.serving.verl_types import to_sampling, to_token_output

logger = logging.getLogger(__name__)


def _share_of_gpu(share: float) -> int:
    """Bytes of the GPU's memory."""
    import torch

    return int(share * torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else 0


class TurntreeServer(ServingTurns):
    """The class of the Ray actor.

    Args:
        model_config: verl's model configuration; its ``path`` is loaded.
        replica_rank: Rank of the replica; moves the seed.
        trainer: The trainer's only process, which a restarted server asks for the weights. ``None`` waits for the
            next update.
        sharing: Settings of the sharing of turns through the broker; ``None`` exchanges none.
    """

    _turns: TurnServer

    def __init__(
        self,
        config: Any,
        model_config: Any,
        replica_rank: int,
        trainer: Any = None,
        sharing: SharingSettings | None = None,
    ) -> None:
        from verl.utils.device import get_device_name
        from verl.utils.fs import copy_to_local

        from turntree.agents.engines.local import LocalEngine

        settings = EngineSettings.parse(plain(config.engine_kwargs.get("turntree")))
        self._max_tokens = config.response_length
        engine_config = settings.engine_config(
            max_batch=config.max_num_seqs,
            max_context=config.max_model_len or config.prompt_length + config.response_length,
            dtype=str(config.dtype).removeprefix("torch."),
            seed=config.seed + replica_rank,
            device=get_device_name(),
        )
        if engine_config.device == "cuda":
            engine_config = replace(engine_config, memory_bytes=_share_of_gpu(config.gpu_memory_utilization))
        self._gives_memory = config.free_cache_engine
        run = RunSettings.parse(plain(config.custom))
        if run.run_ahead.enabled:
            engine_config = replace(engine_config, precomputed_slots=run.run_ahead.slots(config.max_num_seqs))
        path = copy_to_local(model_config.path, use_shm=model_config.get("use_shm", False))
        self.engine = LocalEngine.from_pretrained(path, config=engine_config, forest=settings.forest)
        logger.warning(
            "engine replica %d runs on %s in %s, with at most %d requests at once and %d turns kept",
            replica_rank,
            hardware(engine_config.device),
            engine_config.dtype,
            self.engine.config.max_batch,
            self.engine.config.slots - self.engine.config.max_batch,
        )
        self._life = ServerLife(replica_rank)
        store = self.engine.forest
        replica = Replica(
            rank=replica_rank,
            seed=config.seed + replica_rank,
            vocabulary=self.engine.vocabulary,
            max_context=engine_config.max_context,
            tokenizer=tokenizer_hash(path) if store is None else store.config.tokenizer,
            restarted=self._life.restarted,
        )
        broker = None if sharing is None else BrokerClient(replica_rank)
        self._turns = TurnServer(
            self.engine, run, replica, store=store, sharing=broker, has_imported=bool(settings.forest.import_turns)
        )
        self._running = asyncio.Event()
        self._running.set()
        self._rejecting = self._reopens = False
        if self._life.restarted and trainer is not None:
            ask_for_weights(trainer)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        **media: Any,
    ) -> TokenOutput:
        """Sample one turn after ``prompt_ids``, for verl's own agent loops and its reward loop.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            sampling_params: verl's names, see ``to_sampling``.
            **media: verl's images, videos and sounds, which must be ``None``.
        """
        if given := [name for name, value in media.items() if value]:
            raise ConfigError(f"the turntree engine reads only text, got {given[0]}; use rollout.name=vllm or sglang")
        if self._rejecting:
            raise RuntimeError("the rollout server takes no requests until resume_generation()")
        await self._life.wait_for_weights()
        await self._running.wait()
        sampling = to_sampling(sampling_params, default_max_tokens=self._max_tokens)
        completion = await self._turns.engine.generate(TurnRequest(tuple(prompt_ids), sampling))
        return to_token_output(completion, self._turns.step)

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """As ``ServingTurns``; waits while the server is to be idle."""
        await self._running.wait()
        return await super().submit_turns(client, requests)

    async def update_weights(self, named: Mapping[str, Any], life: str | None = None) -> None:
        """Copy a bucket of weights in place.

        Args:
            life: The id that ``ready`` returned when the update began; ``None`` does not check.

        Raises:
            EngineLost: If the server was restarted since.
        """
        self._life.check(life)
        if self._running.is_set():  # of a server that was started again after verl had ended all turns for this update
            await self.abort_all_requests()
            self._reopens = True
        self._turns.collect(named)
        await asyncio.to_thread(self.engine.update_weights, list(named.items()), version=self._turns.step)

    async def set_global_steps(self, global_steps: int, life: str | None = None) -> None:
        """Set the version of the weights to ``global_steps``, and close the counters of that step."""
        self._life.check(life)
        # The buckets came under the last version: verl gives the new one when all have arrived.
        await asyncio.to_thread(self.engine.update_weights, (), version=global_steps)
        await self.close_step(global_steps)
        self._turns.resume()
        if self._reopens:
            self._reopens = False
            self._running.set()
        self._life.got_weights()

    async def engine_counters(self) -> dict[str, float]:
        """See ``ServingTurns``."""
        past = {} if self.engine.forest is None else self.engine.forest.imported_counters()
        return self.engine.stats().to_dict() | past

    @retry_after_restart
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End running requests and hold (or reject) new ones until ``resume_generation``."""
        self._running.clear()
        self._rejecting = reject_request
        await self._turns.pause()
        aborted = await asyncio.to_thread(self.engine.abort_all)
        while self._turns.desk.running:  # one that had passed the gate may reach the engine only now
            await asyncio.sleep(0.01)
            aborted += await asyncio.to_thread(self.engine.abort_all)
        return {"aborted_count": aborted, "request_ids": []}

    @retry_after_restart
    async def resume_generation(self) -> None:
        """Take requests again."""
        self._rejecting = False
        self._turns.resume()
        self._running.set()

    @retry_after_restart
    async def clear_kv_cache(self) -> None:
        """Drop all keys and values; the store is kept."""
        await asyncio.to_thread(self.engine.reset_prefix_cache)

    release_kv_cache = clear_kv_cache

    @retry_after_restart
    async def sleep(self) -> None:
        """The rollouts of a step are done: drop all keys and values, and stop run-ahead if it is to stop now.

        With ``free_cache_engine`` the device's memory is given back, and nothing is sampled until ``wake_up``.
        """
        await self._turns.pause(for_update=self._gives_memory)
        await asyncio.to_thread(self.engine.sleep if self._gives_memory else self.engine.reset_prefix_cache)
        await self._turns.swap()  # all send here, and fetch when the weights come: no replica is a step behind

    @retry_after_restart
    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the device's memory again, once verl names the keys and values: new weights come before, and go to
        where the old ones wait, so that the trainer's can leave the device first."""
        if tags is None or "kv_cache" in tags:
            await asyncio.to_thread(self.engine.wake)

    async def resume_kv_cache(self) -> None:
        """``wake_up``, whole."""
        await self.wake_up()

    @retry_after_restart
    async def start_profile(self, **kwargs: Any) -> None:
        """The engine has no profiler of its own."""

    @retry_after_restart
    async def stop_profile(self) -> None:
        """The engine has no profiler of its own."""
