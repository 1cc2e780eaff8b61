"""The rollout backend ``rollout.name=turntree``, server side: a Ray actor around the local engine.

The actor lives for the whole run, and so does its ``SpecForest``: a weight
update drops keys and values and keeps what was said, from which later steps
draft. One call is one turn, token ids in and token ids out.

Not covered: more than one device per replica, LoRA adapters, quantised
rollouts, images.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.agents.monitors import MonitoredEngine, Monitors
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.reuse_config import ReuseMode
from turntree.agents.verl.sections import ConfigError, from_mapping, plain, unknown_key
from turntree.agents.verl.settings import EngineSettings, RunSettings
from turntree.agents.verl.step_books import StepBooks
from turntree.agents.verl.turn_pipe import TurnDesk, TurnReply, TurnRequest
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)

_IGNORED = ("logprobs",)  # log-probabilities are always returned
_STOP_REASONS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "aborted",
}


def server_name(replica_rank: int, suffix: str = "") -> str:
    """Name under which the weight side finds the server of a replica."""
    return f"turntree_server_{replica_rank}{suffix}"


def to_sampling(parameters: Mapping[str, Any], *, default_max_tokens: int) -> Sampling:
    """Read verl's sampling parameters.

    Raises:
        ConfigError: If a parameter is unknown, or has a value that cannot be.
    """
    known = [name for name in Sampling.__dataclass_fields__]
    values: dict[str, Any] = {"max_tokens": default_max_tokens}
    for name, value in parameters.items():
        if name in known:
            values[name] = tuple(value) if name == "stop_token_ids" else value
        elif name not in _IGNORED:
            raise unknown_key(name, [*known, *_IGNORED], "the sampling parameters")
    return from_mapping(Sampling, values, "the sampling parameters")


def to_token_output(completion: Completion, global_steps: int) -> TokenOutput:
    """A turn in verl's form, with the speculation counters under verl's names."""
    return TokenOutput(
        token_ids=list(completion.token_ids),
        log_probs=list(completion.logprobs),
        stop_reason=_STOP_REASONS[completion.finish_reason],
        extra_fields={
            "global_steps": global_steps,
            "num_cached_tokens": completion.cached_tokens,
            "spec_num_draft_tokens": completion.draft.drafted,
            "spec_num_accepted_tokens": completion.draft.accepted,
            "spec_num_verify_steps": completion.draft.verify_steps,
            "accepted": list(completion.accepted),
            "levels": completion.levels,
            "behaviour_logprobs": list(completion.behaviour_logprobs),
        },
    )


class TurntreeServer:
    """What runs in the Ray actor.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration; its ``path`` is loaded.
        replica_rank: Rank of the replica; moves the seed.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
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
        path = copy_to_local(model_config.path, use_shm=model_config.get("use_shm", False))
        self.engine = LocalEngine.from_pretrained(path, config=engine_config, forest=settings.forest)
        run = RunSettings.parse(plain(config.custom))
        reuse = None
        if run.reuse.mode is not ReuseMode.NONE:
            forest = self.engine.forest
            reuse = PrefixReuse(
                self.engine,
                run.reuse,
                vocabulary=self.engine.vocabulary,
                max_context=self.engine.config.max_context,
                remember=None if forest is None else forest.insert,
                seed=config.seed + replica_rank,
            )
        monitors = Monitors()
        self._turns = MonitoredEngine(reuse or self.engine, monitors)
        self._desk = TurnDesk(self._turns)
        self._books = StepBooks(run, replica_rank, monitors, reuse)
        self._global_steps = 0
        self._running = asyncio.Event()
        self._running.set()
        self._rejecting = False

    async def ready(self) -> None:
        """Returns once the model is loaded."""

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
            raise ConfigError("the turntree engine reads text alone; use rollout.name=vllm or sglang for images")
        if self._rejecting:
            raise RuntimeError("the rollout server takes no requests until resume_generation()")
        await self._running.wait()
        sampling = to_sampling(sampling_params, default_max_tokens=self._max_tokens)
        completion = await self._turns.generate(prompt_ids, sampling, state=state)
        return to_token_output(completion, self._global_steps)

    async def submit_turns(self, client: str, requests: Sequence[TurnRequest]) -> None:
        """Start turns for a ``TurnPipe``."""
        await self._running.wait()
        self._desk.submit(client, requests)

    async def collect_turns(self, client: str) -> list[TurnReply]:
        """Finished turns of a ``TurnPipe``, at least one."""
        return await self._desk.collect(client)

    async def update_weights(self, named: Mapping[str, Any]) -> None:
        """Copy a bucket of weights in place."""
        self._books.collect(named)
        await asyncio.to_thread(self.engine.update_weights, list(named.items()), version=self._global_steps)

    async def set_global_steps(self, global_steps: int) -> None:
        """The weights are now those of ``global_steps``; closes the books of that step."""
        self._global_steps = global_steps
        self._books.close_step(global_steps, self.engine.stats())

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End what runs and hold (or reject) what comes until ``resume_generation``."""
        self._running.clear()
        self._rejecting = reject_request
        aborted = await asyncio.to_thread(self.engine.abort_all)
        return {"aborted_count": aborted, "request_ids": []}

    async def resume_generation(self) -> None:
        """Take requests again."""
        self._rejecting = False
        self._running.set()

    async def clear_kv_cache(self) -> None:
        """Drop all keys and values; the store is kept."""
        await asyncio.to_thread(self.engine.reset_prefix_cache)

    sleep = release_kv_cache = clear_kv_cache

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Nothing was given away."""

    async def resume_kv_cache(self) -> None:
        """Nothing was given away."""

    async def start_profile(self, **kwargs: Any) -> None:
        """The engine has no profiler of its own."""

    async def stop_profile(self) -> None:
        """The engine has no profiler of its own."""


class TurntreeReplica(RolloutReplica):
    """Starts the server actor of one replica, on the node of its trainer."""

    async def launch_servers(self) -> None:
        """Start the actor and wait for its model.

        Raises:
            ConfigError: If the replica is to span several devices.
        """
        if self.world_size != 1:
            raise ConfigError(
                f"a turntree replica runs on one device, the configuration asks for {self.world_size}; set "
                "rollout.tensor_model_parallel_size, data_parallel_size and pipeline_model_parallel_size to 1"
            )
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        name = server_name(self.replica_rank, self.name_suffix)
        server = (
            ray.remote(TurntreeServer)
            .options(name=name, num_cpus=0, max_concurrency=self.max_concurrency, scheduling_strategy=strategy)
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name
