"""Curricula: tasks that become harder as the policy improves.

A stage is an environment's arguments: harder tasks, more turns, or both. The
curriculum advances when the success rate of the newest episodes of its stage is
high enough, and reviews earlier stages from time to time. Each process has
its own; nothing is shared between the workers of a training run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from turntree.envs.env import Env
from turntree.envs.progress import EnvStop


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a curriculum."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment, for example ``{"max_level": 2}``."""
    max_turns: int | None = None
    """Turns of the policy; ``None`` keeps the environment's own limit."""


class Curriculum:
    """Selects the stage to play by the outcomes of the newest episodes.

    Args:
        advance_at: Success rate at which the next stage begins, in (0, 1].
        fall_back_at: Success rate below which the previous stage returns; ``None`` never.
        window: Number of newest episodes of a stage that count; the stage changes only after so many.
        review: Share of episodes that play an earlier stage.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> curriculum = Curriculum(3, advance_at=0.5, window=2)
        >>> for success in (True, False):
        ...     curriculum.note(0, success)
        >>> curriculum.stage
        1
    """

    def __init__(
        self,
        stages: int,
        *,
        advance_at: float = 0.8,
        fall_back_at: float | None = None,
        window: int = 64,
        review: float = 0.1,
    ) -> None:
        if stages < 1 or window < 1:
            raise ValueError(f"stages and window must be at least 1, got {stages} and {window}")
        if not 0 < advance_at <= 1 or not 0 <= review < 1:
            raise ValueError(f"expected advance_at in (0, 1] and review in [0, 1), got {advance_at} and {review}")
        if fall_back_at is not None and not 0 <= fall_back_at < advance_at:
            raise ValueError(f"fall_back_at must lie below advance_at ({advance_at}), got {fall_back_at}")
        self.stages = stages
        self.advance_at = advance_at
        self.fall_back_at = fall_back_at
        self.review = review
        self.stage = 0
        self._newest: deque[bool] = deque(maxlen=window)

    @property
    def success_rate(self) -> float | None:
        """Success rate of the newest episodes of the stage; ``None`` before the first."""
        return sum(self._newest) / len(self._newest) if self._newest else None

    def pick(self, rng: np.random.Generator) -> int:
        """The stage of the next episode: the newest, or an earlier one for review."""
        if self.stage and rng.random() < self.review:
            return int(rng.integers(self.stage))
        return self.stage

    def note(self, stage: int, success: bool) -> None:
        """Record the outcome of an episode; those of other stages than the newest do not count."""
        if stage != self.stage:
            return
        self._newest.append(success)
        rate = self.success_rate
        if rate is None or len(self._newest) < (self._newest.maxlen or 1):
            return
        if rate >= self.advance_at and self.stage + 1 < self.stages:
            self._move(1)
        elif self.fall_back_at is not None and rate < self.fall_back_at and self.stage:
            self._move(-1)

    def state(self) -> dict[str, Any]:
        """State of the curriculum, JSON values."""
        return {"stage": self.stage, "newest": list(self._newest)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state()`` returned.

        Raises:
            ValueError: If there is no such stage.
        """
        if not 0 <= state["stage"] < self.stages:
            raise ValueError(f"the curriculum has {self.stages} stages, got the state of stage {state['stage']}")
        self.stage = state["stage"]
        self._newest = deque(state["newest"], maxlen=self._newest.maxlen)

    def _move(self, by: int) -> None:
        self.stage += by
        self._newest.clear()


class CurriculumEnv(gymnasium.Wrapper[str, str, str, str]):
    """Plays the stages of a curriculum; a Gymnasium wrapper, so ``rollout()`` takes it as it is.

    ``unwrapped`` is the environment of the running episode's stage. An episode that ends in a failure is
    no verdict on the policy and is not counted.
    """

    def __init__(
        self,
        make: Callable[..., Env],
        stages: Sequence[Stage],
        curriculum: Curriculum | None = None,
        *,
        success: float = 1.0,
    ) -> None:
        """Make the environment of each stage.

        Args:
            make: Makes an environment, given a stage's arguments.
            stages: The easiest first.
            curriculum: Selects the stages; may be shared by environments of one process. ``None`` makes one.
            success: Least reward of a successful episode, summed over its turns.

        Raises:
            ValueError: If the curriculum has another number of stages.
        """
        if not stages:
            raise ValueError("a curriculum needs at least one stage, got none")
        self.curriculum = curriculum or Curriculum(len(stages))
        if self.curriculum.stages != len(stages):
            raise ValueError(f"the curriculum is for {self.curriculum.stages} stages, got {len(stages)}")
        self._envs = [_make_stage(make, stage) for stage in stages]
        super().__init__(self._envs[0])
        self._success = success
        self._rng: np.random.Generator | None = None
        self._unseeded: set[int] = set()
        self._reward = 0.0
        self.playing = 0
        """The stage of the running episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode of the stage that the curriculum picks; see ``Env.reset``."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
            self._unseeded = set(range(len(self._envs)))
        self.playing = self.curriculum.pick(self._rng)
        self.env = self._envs[self.playing]
        self._reward = 0.0
        if self.playing in self._unseeded:  # so that one seed determines the draws of every stage
            self._unseeded.remove(self.playing)
            seed = int(self._rng.integers(2**31)) if seed is None else seed
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn of the policy; see ``Env.step``."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._reward += float(reward)
        if (terminated or truncated) and info["stop_reason"] != EnvStop.FAILURE:
            self.curriculum.note(self.playing, self._reward >= self._success)
        return observation, float(reward), terminated, truncated, info

    def close(self) -> None:
        """Close the environment of every stage."""
        for env in self._envs:
            env.close()


def _make_stage(make: Callable[..., Env], stage: Stage) -> Env:
    env = make(**stage.arguments)
    if stage.max_turns is not None:
        env.limits = replace(env.limits, max_turns=stage.max_turns)
    return env
