"""The rollout backend ``rollout.name=turntree``: the local engine in one Ray actor per replica.

The actor and its ``SpecForest`` live for the whole run. A weight update drops keys and values but keeps the sampled
turns, from which later steps draft. ``WeightSender`` runs in the trainer's process.

Not supported: several devices per replica, LoRA adapters, quantised rollouts, images.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.evaluation.machine import hardware
from turntree.agents.verl.config.sections import ConfigError, from_mapping, plain, unknown_key
from turntree.agents.verl.config.settings import EngineSettings, RunSettings, SharingSettings
from turntree.agents.verl.names import REPLICA_SIZES, server_name
from turntree.agents.verl.serving.restarts import (
    RESTARTS,
    RestartedServer,
    ServerLife,
    ask_for_weights,
    held,
    retry_after_restart,
)
from turntree.agents.verl.serving.turn_broker import BrokerClient, SharingReplica
from turntree.agents.verl.serving.turns import NumberedRequest, Replica, ServingTurns, TurnServer

logger = logging.getLogger(__name__)

# Log-probabilities are always returned, and a turn ends only at its own stop tokens.
_IGNORED_PARAMETERS = ("logprobs", "ignore_eos")
_STOP_REASONS = {FinishReason.STOP: "completed", FinishReason.LENGTH: "length", FinishReason.ABORT: "aborted"}


def to_sampling(parameters: Mapping[str, Any], *, default_max_tokens: int) -> Sampling:
    known = [name for name in Sampling.__dataclass_fields__]
    values: dict[str, Any] = {"max_tokens": default_max_tokens}
    for name, value in parameters.items():
        if name in known:
            values[name] = tuple(value) if name == "stop_token_ids" else value
        elif name not in _IGNORED_PARAMETERS:
            raise unknown_key(name, [*known, *_IGNORED_PARAMETERS], "the sampling parameters")
    return from_mapping(Sampling, values, "the sampling parameters")


def to_token_output(completion: Completion, global_steps: int) -> TokenOutput:
    return TokenOutput(
        token_ids=list(completion.token_ids),
        log_probs=list(completion.logprobs),
        stop_reason=_STOP_REASONS[completion.finish_reason],
        extra_fields={
            "global_steps": global_steps,
            "num_cached_tokens": completion.cached_tokens,
            "spec_num_verify_steps": completion.draft.verify_steps,
            "spec_num_draft_tokens": completion.draft.drafted,
            "spec_num_accepted_tokens": completion.draft.accepted,
        },
    )


def _engine_config(config: Any, settings: EngineSettings, run: RunSettings, replica_rank: int) -> LocalEngineConfig:
    from verl.utils.device import get_device_name

    engine_config = settings.engine_config(
        max_batch=config.max_num_seqs,
        max_context=config.max_model_len or config.prompt_length + config.response_length,
        dtype=str(config.dtype).removeprefix("torch."),
        seed=config.seed + replica_rank,
        device=get_device_name(),
    )
    if engine_config.device == "cuda":
        total = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 0
        engine_config = replace(engine_config, memory_bytes=int(config.gpu_memory_utilization * total))
    if run.run_ahead.enabled:
        engine_config = replace(engine_config, precomputed_slots=run.run_ahead.slots(config.max_num_seqs))
    return engine_config


class TurntreeServer(ServingTurns):
    """The class of the Ray actor.

    Args:
        model_config: verl's model configuration; the model at its ``path`` is loaded.
        replica_rank: Rank of the replica; added to the seed.
        trainer: Handle of a single-process trainer, from which a restarted server requests the weights. ``None``: a
            restarted server waits for the next weight update.
        sharing: Settings of draft sharing between replicas; ``None`` disables it.
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
        from verl.utils.fs import copy_to_local

        from turntree.agents.engines.local import LocalEngine

        self._max_tokens, self._frees_memory = config.response_length, config.free_cache_engine
        settings = EngineSettings.parse(plain(config.engine_kwargs.get("turntree")))
        run = RunSettings.parse(plain(config.custom))
        engine_config = _engine_config(config, settings, run, replica_rank)
        path = copy_to_local(model_config.path, use_shm=model_config.get("use_shm", False))
        self.engine = LocalEngine.from_pretrained(path, config=engine_config, forest=settings.forest)
        max_batch, slots = self.engine.config.max_batch, self.engine.config.slots
        logger.warning(
            "engine replica %d runs on %s in %s, with at most %d requests at once and %d turns kept",
            *(replica_rank, hardware(engine_config.device), engine_config.dtype, max_batch, slots - max_batch),
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
        self._rejecting = self._resumes_after_update = False
        if self._life.restarted and trainer is not None:
            ask_for_weights(trainer)

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, **media: Any
    ) -> TokenOutput:
        """Sample one turn for verl's own agent loops and its reward loop; text only."""
        if names := [name for name, value in media.items() if value]:
            raise ConfigError(f"the turntree engine reads only text, got {names[0]}; use rollout.name=vllm or sglang")
        if self._rejecting:
            raise RuntimeError("the rollout server rejects requests until resume_generation() is called")
        await self._life.wait_for_weights()
        await self._running.wait()
        sampling = to_sampling(sampling_params, default_max_tokens=self._max_tokens)
        completion = await self._turns.engine.generate(TurnRequest(tuple(prompt_ids), sampling))
        return to_token_output(completion, self._turns.step)

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        await self._running.wait()
        return await super().submit_turns(client, requests)

    async def update_weights(self, named: Mapping[str, Any], life: str | None = None) -> None:
        """Copy a bucket of weights into the model, in place."""
        self._life.check(life)
        if self._running.is_set():  # verl had ended all turns for this update, but the server was restarted since
            await self.abort_all_requests()
            self._resumes_after_update = True
        self._turns.collect(named)
        await asyncio.to_thread(self.engine.update_weights, list(named.items()), version=self._turns.step)

    async def set_global_steps(self, global_steps: int, life: str | None = None) -> None:
        self._life.check(life)
        # verl passes the new version only after all buckets, so the buckets were loaded under the last version.
        await asyncio.to_thread(self.engine.update_weights, (), version=global_steps)
        await self.close_step(global_steps)
        self._turns.resume()
        if self._resumes_after_update:
            self._resumes_after_update = False
            self._running.set()
        self._life.got_weights()

    async def engine_counters(self) -> dict[str, float]:
        imported = {} if self.engine.forest is None else self.engine.forest.imported_counters()
        return self.engine.stats().to_dict() | imported

    @retry_after_restart
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End running requests; hold (or reject) new ones until ``resume_generation``."""
        self._running.clear()
        self._rejecting = reject_request
        await self._turns.pause()
        aborted = await asyncio.to_thread(self.engine.abort_all)
        while self._turns.batches.running:  # a turn may have passed ``_running`` before and reach the engine only now
            await asyncio.sleep(0.01)
            aborted += await asyncio.to_thread(self.engine.abort_all)
        return {"aborted_count": aborted, "request_ids": []}

    @retry_after_restart
    async def resume_generation(self) -> None:
        self._rejecting = False
        self._turns.resume()
        self._running.set()

    @retry_after_restart
    async def clear_kv_cache(self) -> None:
        await asyncio.to_thread(self.engine.reset_prefix_cache)

    release_kv_cache = clear_kv_cache

    @retry_after_restart
    async def sleep(self) -> None:
        # With ``free_cache_engine``, the engine samples nothing until ``wake_up``.
        await self._turns.pause(for_update=self._frees_memory)
        await asyncio.to_thread(self.engine.sleep if self._frees_memory else self.engine.reset_prefix_cache)
        # All replicas send turns when they sleep and fetch turns when the weights arrive, so no replica misses turns of
        # the last step.
        await self._turns.swap()

    @retry_after_restart
    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        # New weights arrive before verl asks for the KV cache. Until then the engine's weights stay in host memory, and
        # the new weights overwrite them there. The trainer's weights can thus leave the device first.
        if tags is None or "kv_cache" in tags:
            await asyncio.to_thread(self.engine.wake)

    async def resume_kv_cache(self) -> None:
        await self.wake_up()

    # The engine has no profiler of its own.
    @retry_after_restart
    async def start_profile(self, **kwargs: Any) -> None: ...

    @retry_after_restart
    async def stop_profile(self) -> None: ...


class TurntreeReplica(SharingReplica, RolloutReplica):
    """Starts the server of one replica on its trainer's node and device; Ray restarts the actor if it dies."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ConfigError(
                f"a turntree replica runs on one device, but the configuration asks for {self.world_size}; set "
                f"rollout.{', '.join(REPLICA_SIZES[:-1])} and {REPLICA_SIZES[-1]} to 1"
            )
        node, devices = await self.workers[0].__ray_call__.remote(_node_and_devices)
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        name = server_name(self.replica_rank, self.name_suffix)
        trainer = self.workers[0] if self._replicas == 1 or self.rollout_mode is RolloutMode.STANDALONE else None
        self.model_config = held(self.model_config)
        server = (
            ray.remote(TurntreeServer)
            .options(
                name=name,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                max_restarts=RESTARTS,
                scheduling_strategy=strategy,
                runtime_env=_device_sharing(devices),
            )
            .remote(self.config, self.model_config, self.replica_rank, trainer, self.join_broker())
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


def _node_and_devices(worker: Any) -> tuple[str, list[str]]:
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_accelerator_ids().get(get_platform().ray_resource_name(), [])


def _device_sharing(devices: list[str]) -> dict[str, Any] | None:
    # Ray hides all accelerators from an actor that reserves none, unless these variables of the platform are set.
    # The CPU platform has no such variables.
    platform = get_platform()
    unhide = dict.fromkeys(platform.ray_noset_envvars(), "1")
    return {"env_vars": {**unhide, platform.visible_devices_envvar(): ",".join(devices)}} if unhide else None


Weights = Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]]


class WeightSender(RestartedServer, BaseRollout):
    """Sends the trainer's weights to a ``TurntreeServer``; ``replica_rank`` -1 takes the trainer's rank."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        # A replica has one device, so every trainer rank has its own replica.
        rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.replica_rank = rank
        self._bucket_bytes = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20

    async def server(self) -> Any:
        return ray.get_actor(server_name(self.replica_rank))

    async def resume(self, tags: list[str]) -> None:
        await (await self.server()).wake_up.remote(tags=tags)

    async def release(self) -> None:
        await (await self.server()).sleep.remote()

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send full tensors under Hugging Face names, then the step of these weights."""
        if wire_format != "named_tensors":
            raise ConfigError(
                f"the turntree engine loads whole tensors, not {wire_format!r}; use checkpoint_engine.backend=naive"
            )
        if peft_config is not None:
            raise ConfigError("the turntree engine loads no adapters; set actor_rollout_ref.model.lora.merge=True")
        await super().update_weights(weights, global_steps=global_steps)

    async def send(self, server: Any, life: str, weights: Any, **kwargs: Any) -> None:
        async for bucket in buckets_of(weights, self._bucket_bytes):
            await server.update_weights.remote(bucket, life)


async def buckets_of(weights: Weights, bucket_bytes: int) -> AsyncIterator[dict[str, torch.Tensor]]:
    """Copy the weights to the CPU in buckets; a bucket ends with the tensor that fills it."""
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    async for name, tensor in ensure_async_iterator(weights):
        bucket[name] = tensor.detach().to("cpu", copy=True)
        size += tensor.numel() * tensor.element_size()
        if size >= bucket_bytes:
            yield bucket
            bucket, size = {}, 0
    if bucket:
        yield bucket
