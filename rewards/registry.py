"""Registry of reward functions by name, including entry points of installed packages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, TypeVar, cast

from turntree.rewards.errors import RewardDefinitionError, UnknownReward
from turntree.rewards.sample import Sample

GROUP = "turntree.rewards"  #: entry-point group; each entry names a reward function


class RewardFunction(Protocol):
    """A function that grades one sample."""

    def __call__(self, sample: Sample, /) -> float | None:
        """Return a value, or ``None`` if the sample is ungraded."""


class GroupRewardFunction(Protocol):
    """A function that grades all samples of one task together."""

    def __call__(self, samples: Sequence[Sample], /) -> Sequence[float | None]:
        """Return one value per sample, in order; ``None`` where a sample is ungraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A named reward function."""

    name: str  #: name used in configurations
    function: RewardFunction | GroupRewardFunction
    group: bool = False  #: whether the function takes all samples of a task at once
    decides: bool = False  #: whether the function grades the answer; all other rewards are shaping rewards

    def values(self, samples: Sequence[Sample]) -> list[float | None]:
        """Return one value per sample.

        Raises:
            RewardDefinitionError: A group reward returned more or fewer values than samples.
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
        name: Name used in configurations.
        group: The function takes all samples of one task and returns one value per sample.
        decides: The function grades the answer. All other rewards are shaping rewards, which a ``Rubric`` bounds.

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
    """Remove the reward of this name if it exists."""
    _registered.pop(name, None)


def get_reward(name: str, *, load: bool = True) -> Reward:
    """Return the reward of this name, including entry points of installed packages.

    Args:
        name: A registered name, or the name of an entry point.
        load: Whether an entry point may be imported. Pass ``False`` for a name from an untrusted source.

    Raises:
        UnknownReward: Neither a registered reward nor an entry point has this name.
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
    """Return every name that ``get_reward`` knows, sorted."""
    return sorted({*_registered, *(entry.name for entry in entry_points(group=GROUP))})
