"""The registry of reward functions by name: those registered here, and those of installed packages.

Invariant: a name means one function; a second registration is refused. Nothing
is imported before it is requested.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, TypeVar, cast

from turntree.rewards.errors import RewardDefinitionError, UnknownReward
from turntree.rewards.sample import Sample

GROUP = "turntree.rewards"
"""Entry-point group; each entry names a reward function."""


class RewardFunction(Protocol):
    """Grades one sample."""

    def __call__(self, sample: Sample, /) -> float | None:
        """A value, or ``None`` if ungraded."""


class GroupRewardFunction(Protocol):
    """Grades the samples of one task together."""

    def __call__(self, samples: Sequence[Sample], /) -> Sequence[float | None]:
        """One value a sample, in order; ``None`` if ungraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A named reward function."""

    name: str
    """Its name in configurations."""
    function: RewardFunction | GroupRewardFunction
    """The function itself."""
    group: bool = False
    """Whether it takes all samples of a task at once."""
    decides: bool = False
    """Whether it grades the answer itself; others are shaping."""

    def values(self, samples: Sequence[Sample]) -> list[float | None]:
        """One value a sample.

        Raises:
            RewardDefinitionError: A group reward returned another number of values than samples.
        """
        if not self.group:
            grade = cast(RewardFunction, self.function)
            return [grade(sample) for sample in samples]
        values = list(cast(GroupRewardFunction, self.function)(samples))
        if len(values) != len(samples):
            raise RewardDefinitionError(
                f"group reward {self.name!r} returned {len(values)} values for {len(samples)} samples; return one each"
            )
        return values


_F = TypeVar("_F", bound=Callable[..., object])
_registered: dict[str, Reward] = {}


def reward(name: str, *, group: bool = False, decides: bool = False) -> Callable[[_F], _F]:
    """Register a reward function under a name.

    Args:
        group: The function takes all samples of one task and returns one value each.
        decides: The function grades the answer; all others are shaping, which a ``Rubric`` bounds.

    Raises:
        RewardDefinitionError: The name belongs to another function.
    """

    def register(function: _F) -> _F:
        if name in _registered and _registered[name].function is not function:
            raise RewardDefinitionError(f"reward {name!r} is already registered; choose another name")
        _registered[name] = Reward(name=name, function=cast(RewardFunction, function), group=group, decides=decides)
        return function

    return register


def unregister(name: str) -> None:
    """Remove the reward of a name, if there is one."""
    _registered.pop(name, None)


def get_reward(name: str, *, load: bool = True) -> Reward:
    """The reward of a name; entry points of installed packages are included.

    Args:
        load: Whether an entry point may be imported; a name from outside may not do that.

    Raises:
        UnknownReward: Neither a registered reward nor an entry point has the name.
        RewardDefinitionError: An entry point loads something that is not a function.
    """
    if name not in _registered and load:
        for entry in entry_points(group=GROUP, name=name):
            loaded = entry.load()
            if name in _registered:
                break
            if isinstance(loaded, Reward):
                _registered[name] = loaded
            elif callable(loaded):
                _registered[name] = Reward(name=name, function=loaded)
            else:
                raise RewardDefinitionError(f"entry point {entry.value!r} of reward {name!r} is no function")
    if name not in _registered:
        known = reward_names() if load else sorted(_registered)
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise UnknownReward(f"no reward is called {name!r}; {hint}")
    return _registered[name]


def reward_names() -> list[str]:
    """Every name that ``get_reward`` knows, sorted."""
    return sorted({*_registered, *(entry.name for entry in entry_points(group=GROUP))})
