"""verl's asynchronous replay buffer with a short poll, turntree's figures, and batches of one policy.

verl takes the groups that end first, whatever weights they are of: short episodes come
early, and long ones are interrupted more often. With ``on_resume=episode`` a step is
trained on groups that are verified again by the present weights (``REVERIFIED``), and, ``in_order``, on
those that were submitted first, once all of them are: which row a step gets does not
depend on what was sampled, so that each is a draw from the present policy.
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

REVERIFIED = "reverified"
"""Tag of a row: the version of the weights that its group is verified again by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSamplerSettings:
    """Section ``trainer.v1.sampler.sampler_kwargs``."""

    poll_interval: float = 0.1
    """Seconds between two polls for the episodes."""
    on_resume: OnResume = OnResume.EPISODE
    """As ``turntree.asynchronous.on_resume``."""
    in_order: bool = True
    """As ``turntree.asynchronous.in_order``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_resume", OnResume(self.on_resume))
        if self.poll_interval <= 0:
            raise ValueError(f"poll_interval must be positive, got {self.poll_interval}")


def submitted_first(steps: Mapping[str, int], count: int) -> set[str]:
    """Names of the groups that come first, by the step of their submission.

    >>> sorted(submitted_first({"d": 1, "c": 2, "a": 3, "b": 2}, 2))
    ['b', 'd']
    """
    # verl's names of groups are random: their order depends on nothing that was sampled.
    return set(sorted(steps, key=lambda uid: (steps[uid], uid))[:count])


class InterruptedReplayBuffer(LoggedSteps, ReplayBufferAsync):
    """See the module's docstring.

    Args:
        sampler_kwargs: As ``AsyncSamplerSettings``.
    """

    def __init__(self, *, sampler_kwargs: Any, refill_fn: Callable[[int], Any] | None, **kwargs: Any) -> None:
        if kwargs["trainer_mode"] not in (COLOCATED, SEPARATE):
            raise ConfigError(
                f"this sampler is for trainer.v1.trainer_mode={COLOCATED} or {SEPARATE}, got "
                f"{kwargs['trainer_mode']!r}; set trainer.v1.sampler.custom_sampler.path=null"
            )
        # verl 0.9.1 logs there with an argument that no logger takes, which ends the run unless the line is left out.
        logging.getLogger("verl.trainer.ppo.v1.trainer_separate_async").setLevel(logging.WARNING)
        settings = from_mapping(AsyncSamplerSettings, plain(sampler_kwargs), "trainer.v1.sampler.sampler_kwargs")
        self._judged = settings.on_resume is OnResume.EPISODE
        self._in_order = settings.in_order
        self._step, self._wanted = 0, 0
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=settings.poll_interval, refill_fn=refill_fn, **kwargs
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """As ``LoggedSteps``."""
        self._step, self._wanted = global_steps, batch_size
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> set[str]:
        ready: set[str] = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        if partition_id == "val" or not self._judged:
            return ready
        if self._in_order:
            ready &= submitted_first(self.prompt_global_steps[partition_id], self._wanted)
        # The queue lists a key before it has its tags and its data: such a row is not there yet.
        stale = {
            key.split("_")[0]
            for key, tag in self.partitions[partition_id].items()
            if "_" in key and tag.get(REVERIFIED, -1) < self._step - 1
        }
        played = {key.split("_")[0] for key in self.partitions[partition_id]}
        return (ready & played) - stale
