"""verl's replay buffer with a short poll interval, as a custom sampler (verl's word for a replay buffer class).

verl polls for episodes every two seconds, longer than a small policy takes to play them. Only a custom sampler can set
the interval. verl passes no group filter to a custom sampler, so DAPO's filter is passed on here, with the limit on
generated batches that verl's synchronous sampler ignores.

verl logs the metrics that a sampler returns with the episodes, so this sampler returns turntree's metrics. verl
computes advantages in the sampler's process, so this module registers turntree's estimators.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

import turntree.agents.verl.episodes.advantages  # noqa: F401 - registers the estimators
from turntree.agents.verl.config.asynchronous import updates_while_playing
from turntree.agents.verl.config.sections import ConfigError, from_mapping, plain
from turntree.agents.verl.patches import apply_step_patches
from turntree.agents.verl.records.metrics import PlayedRow, engine_metrics, episode_metrics
from turntree.agents.verl.records.phases import note_phase

logger = logging.getLogger(__name__)

#: names of the policy's servers, see ``names.server_name``
_SERVER = re.compile(r"turntree_server_\d+|(vllm|sglang)_server_\d+_0")
_ANSWER_SECONDS = 30.0  #: time limit for a server's counters; a slower server is missing from the step's metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    poll_interval: float = 0.1
    """Seconds between two polls for episodes."""
    filter_groups_metric: str | None = None
    """DAPO: replace groups in which this metric is equal for all samples; ``None`` disables."""
    train_batch_size: int | None = None
    """DAPO: prompts per batch."""
    max_inflight_gen_batches: int = 1
    """DAPO: batches of prompts generated at once."""
    max_num_gen_batches: int = 10
    """DAPO: limit on the batches of prompts that one step generates; 0 is no limit."""

    def __post_init__(self) -> None:
        if self.poll_interval <= 0:
            raise ValueError(f"poll_interval must be positive, got {self.poll_interval}")
        if self.filter_groups_metric is not None and self.train_batch_size is None:
            raise ValueError("filter_groups_metric needs train_batch_size: ${data.train_batch_size}")


class LoggedSteps:
    """Mix-in for verl's replay buffers that records the run's phases and adds turntree's metrics to each step."""

    _updates = False  #: whether the first update of the policy has begun

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        apply_step_patches()  # verl must survive steps without a token to learn from
        note_phase("loading the model to be trained")  # the sampler is the first object that verl's trainer creates

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Wait for the episodes of a step; return the batch, and metrics for verl's log."""
        if not self._updates:
            note_phase("playing the first episodes" if partition_id == "train" else "validating the policy")
        buffer: Any = super()
        batch, logged = buffer.sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        if batch.partition_id == "train":
            if not self._updates:
                note_phase("updating the policy for the first time")
                self._updates = True
            logged = {**logged, **step_figures(batch)}
        return batch, logged


class PromptReplayBuffer(LoggedSteps, ReplayBuffer):
    def __init__(self, *, sampler_kwargs: Any, refill_fn: Callable[[int], Any] | None, **kwargs: Any) -> None:
        if updates_while_playing(kwargs["trainer_mode"]):
            raise ConfigError(
                f"this sampler is for trainer.v1.trainer_mode=sync, got {kwargs['trainer_mode']!r}; set "
                "trainer.v1.sampler.custom_sampler.path=null"
            )
        settings = from_mapping(SamplerSettings, plain(sampler_kwargs), "trainer.v1.sampler.sampler_kwargs")
        self._submit = refill_fn
        self._submitted = 0  #: prompts that DAPO's filter has requested in this step
        self._max_prompts = settings.max_num_gen_batches * (settings.train_batch_size or 0)
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            poll_interval=settings.poll_interval,
            refill_fn=self._refill,
            filter_groups_metric=settings.filter_groups_metric,
            train_batch_size=settings.train_batch_size,
            gen_batch_size=1,
            max_inflight_gen_batches=settings.max_inflight_gen_batches,
            **kwargs,
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        self._submitted = 0
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _dapo_filtered_keys(self, partition_id: str) -> Any:
        # Do not filter groups in which every episode failed. They carry no information about the task, and while the
        # environment is down, replacement groups would fail too, without end.
        filtered, counts = super()._dapo_filtered_keys(partition_id)
        if not filtered:
            return filtered, counts
        keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in filtered]
        masks = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["response_mask"])
        masked = zip(keys, masks["response_mask"], strict=True)
        played = {key.split("_")[0] for key, mask in masked if mask.any()}
        classified = self._dapo_classification_cache[partition_id]
        for uid in filtered - played:
            counts[classified[uid]] -= 1
            classified[uid] = None
        return played, +counts

    def _refill(self, prompts: int) -> Any:
        self._submitted += prompts
        if self._max_prompts and self._submitted > self._max_prompts:
            raise ConfigError(
                f"DAPO's filter requested {self._submitted} new prompts in one step, but the limit is "
                f"{self._max_prompts}: nearly all groups have equal scores. Use easier or harder tasks, "
                "algorithm=grpo, a larger actor_rollout_ref.rollout.n or a larger "
                "algorithm.filter_groups.max_num_gen_batches"
            )
        assert self._submit is not None
        return self._submit(prompts)


def step_figures(batch: Any) -> dict[str, float]:
    return {**episode_metrics(_played_rows(batch)), **engine_metrics(read_counters())}


def _played_rows(batch: Any) -> list[PlayedRow]:
    # verl's padding rows have no episode.
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    data = transfer_queue.kv_batch_get(
        keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields", "token_levels"]
    )
    extra, levels = list(data["extra_fields"]), data["token_levels"].unbind()
    # A key is GROUP_SAMPLE_ROW.
    names = [key.split("_")[0] for key in keys]
    rows = zip(extra, levels, names, strict=True)
    return [PlayedRow(extra=fields, levels=tokens.tolist(), group=name) for fields, tokens, name in rows]


def read_counters() -> list[Mapping[str, float]]:
    """Return the counters of each replica's server since the last call."""
    counted: list[Mapping[str, float]] = []
    for name in filter(_SERVER.fullmatch, ray.util.list_named_actors()):
        try:
            answer: Any = ray.get(ray.get_actor(name).step_counters.remote(), timeout=_ANSWER_SECONDS)
            counted.append(answer)
        except (ray.exceptions.RayError, ValueError):
            logger.warning("the step's metrics miss server %s, whose counters cannot be read", name, exc_info=True)
    return counted
