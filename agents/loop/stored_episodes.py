"""Earlier episodes of one process, each a forecast of what its environment will answer."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

_SIBLINGS = 16
"""Most episodes of one beginning."""


class StoredStep(NamedTuple):
    """One turn of an episode."""

    text: str
    """What the environment was given."""
    before: bytes
    """Snapshot of the environment before it."""
    answer: Sequence[Mapping[str, Any]]
    """The messages that the environment answered with, in OpenAI's format."""


StoredEpisode = tuple[StoredStep, ...]
"""The turns of an episode that has ended."""


class StoredEpisodes:
    """Episodes of environments made with the same arguments, by what they begin with. Not thread-safe.

    Args:
        max_bytes: Most bytes of their snapshots; the episodes of the beginning that was played longest ago go first.
    """

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        self._room = max_bytes
        self._episodes: OrderedDict[Hashable, deque[StoredEpisode]] = OrderedDict()

    def of(self, key: Hashable) -> list[StoredEpisode]:
        """The episodes of ``key``, the latest first."""
        return [*reversed(self._episodes.get(key, ()))]

    def add(self, key: Hashable, episode: StoredEpisode) -> None:
        """Store an episode.

        Args:
            key: All that the environment's answers depend on beside the turns.
            episode: The episode.
        """
        siblings = self._episodes.setdefault(key, deque())
        self._episodes.move_to_end(key)
        siblings.append(episode)
        self._room -= _size(episode)
        if len(siblings) > _SIBLINGS:
            self._room += _size(siblings.popleft())
        while self._room < 0:
            oldest = next(iter(self._episodes))
            self._room += _size(self._episodes[oldest].popleft())
            if not self._episodes[oldest]:
                del self._episodes[oldest]


def _size(episode: StoredEpisode) -> int:
    return sum(len(step.before) for step in episode)
