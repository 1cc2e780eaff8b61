"""verl's replay buffer with a short poll, as a custom sampler.

verl's own asks every two seconds whether the episodes are there, which a small
policy waits for longer than for its episodes; a custom sampler is the way to
set the interval. verl gives a custom sampler no group filter, so DAPO's is
passed on here, with the bound on its work that verl's synchronous sampler
ignores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from turntree.agents.verl.sections import ConfigError, from_mapping, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """Section ``trainer.v1.sampler.sampler_kwargs``."""

    poll_interval: float = 0.1
    """Seconds between two looks at the episodes."""
    filter_groups_metric: str | None = None
    """DAPO: groups in which this metric is the same for all are replaced; ``None`` filters nothing."""
    train_batch_size: int | None = None
    """DAPO: prompts of a batch."""
    max_inflight_gen_batches: int = 1
    """DAPO: batches of prompts generated at once."""
    max_num_gen_batches: int = 10
    """DAPO: batches of prompts that one step may generate; 0 is no bound."""

    def __post_init__(self) -> None:
        if self.poll_interval <= 0:
            raise ValueError(f"poll_interval must be positive, got {self.poll_interval}")
        if self.filter_groups_metric is not None and self.train_batch_size is None:
            raise ValueError("filter_groups_metric needs train_batch_size: ${data.train_batch_size}")


class PromptReplayBuffer(ReplayBuffer):
    """verl's synchronous replay buffer; see the module's docstring.

    Args:
        sampler_kwargs: As ``SamplerSettings``.
        refill_fn: verl's: submits so many new prompts.
        kwargs: verl's.
    """

    def __init__(self, *, sampler_kwargs: Any, refill_fn: Callable[[int], Any] | None, **kwargs: Any) -> None:
        if kwargs["trainer_mode"] != "sync":
            raise ConfigError(
                f"this sampler is for trainer.v1.trainer_mode=sync, got {kwargs['trainer_mode']!r}; set "
                "trainer.v1.sampler.custom_sampler.path=null"
            )
        settings = from_mapping(SamplerSettings, plain(sampler_kwargs), "trainer.v1.sampler.sampler_kwargs")
        self._submit = refill_fn
        self._submitted = 0
        self._most = settings.max_num_gen_batches * (settings.train_batch_size or 0)
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

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the episodes of a step.

        Raises:
            RuntimeError: If DAPO's filter threw away more groups than ``max_num_gen_batches`` allows.
        """
        self._submitted = 0
        return super().sample(*args, **kwargs)

    def _refill(self, prompts: int) -> Any:
        self._submitted += prompts
        if self._most and self._submitted > self._most:
            raise RuntimeError(
                f"the group filter asked for {self._submitted} new prompts in one step, the bound is {self._most}: "
                "nearly all groups score the same throughout; use easier or harder tasks, a larger rollout.n, or "
                "raise sampler_kwargs.max_num_gen_batches"
            )
        assert self._submit is not None
        return self._submit(prompts)
