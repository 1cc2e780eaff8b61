"""verl's asynchronous replay buffer with a short poll, turntree's metrics, and batches of one policy.

verl trains on the groups (the samples of one task) that end first, whatever their weight version. Short episodes then
come early, and weight updates interrupt long episodes more often. With ``on_resume=episode`` a step takes only groups
that the current weights have re-verified (tag ``REVERIFIED``). With ``in_order`` a step also waits for the groups that
were submitted first. The choice of rows then does not depend on sampled tokens, so each rollout is an unbiased sample
of the current policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

import turntree.agents.verl.episodes.advantages  # noqa: F401 - registers the estimators
from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.verl.config.asynchronous import COLOCATED, SEPARATE
from turntree.agents.verl.config.sections import ConfigError, from_mapping, plain
from turntree.agents.verl.episodes.sampler import LoggedSteps

REVERIFIED = "reverified"  #: tag of a row: the weight version under which its group was last verified


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSamplerSettings:
    poll_interval: float = 0.1
    """Seconds between two polls for episodes."""
    on_resume: OnResume = OnResume.EPISODE
    """See ``turntree.asynchronous.on_resume``."""
    in_order: bool = True
    """See ``turntree.asynchronous.in_order``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_resume", OnResume(self.on_resume))
        if self.poll_interval <= 0:
            raise ValueError(f"poll_interval must be positive, got {self.poll_interval}")


def submitted_first(steps: Mapping[str, int], count: int) -> set[str]:
    """Return the names of the ``count`` groups that were submitted first; ``steps`` has each group's step.

    >>> sorted(submitted_first({"d": 1, "c": 2, "a": 3, "b": 2}, 2))
    ['b', 'd']
    """
    # Ties are broken by verl's random group names, which do not depend on sampled tokens.
    return set(sorted(steps, key=lambda uid: (steps[uid], uid))[:count])


class InterruptedReplayBuffer(LoggedSteps, ReplayBufferAsync):
    def __init__(self, *, sampler_kwargs: Any, refill_fn: Callable[[int], Any] | None, **kwargs: Any) -> None:
        if kwargs["trainer_mode"] not in (COLOCATED, SEPARATE):
            raise ConfigError(
                f"this sampler is for trainer.v1.trainer_mode={COLOCATED} or {SEPARATE}, got "
                f"{kwargs['trainer_mode']!r}; set trainer.v1.sampler.custom_sampler.path=null"
            )
        # verl 0.9.1 passes this logger an invalid argument at level INFO, which would end the run.
        logging.getLogger("verl.trainer.ppo.v1.trainer_separate_async").setLevel(logging.WARNING)
        settings = from_mapping(AsyncSamplerSettings, plain(sampler_kwargs), "trainer.v1.sampler.sampler_kwargs")
        self._reverifies = settings.on_resume is OnResume.EPISODE
        self._in_order = settings.in_order
        self._step, self._wanted = 0, 0  # the current step, and the number of groups that it takes
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=settings.poll_interval, refill_fn=refill_fn, **kwargs
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        self._step, self._wanted = global_steps, batch_size
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> set[str]:
        ready: set[str] = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        if partition_id == "val" or not self._reverifies:
            return ready
        if self._in_order:
            ready &= submitted_first(self.prompt_global_steps[partition_id], self._wanted)
        # The queue lists a key before its tags and data have arrived, so a missing tag counts as stale.
        stale = {
            key.split("_")[0]
            for key, tag in self.partitions[partition_id].items()
            if "_" in key and tag.get(REVERIFIED, -1) < self._step - 1
        }
        played = {key.split("_")[0] for key in self.partitions[partition_id]}
        return (ready & played) - stale
