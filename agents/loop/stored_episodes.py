"""Earlier episodes of one process, by the exact state in which they began.

An episode is a forecast of the next one that begins there: of its turns and of
the environment's answers. It is used once, in a later step than its own, and
chosen without looking at what was said: room is counted in episodes, not in tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import NamedTuple


class StoredStep(NamedTuple):
    """One turn of an episode."""

    prompt_ids: tuple[int, ...]
    """Token ids before it, shape (prompt,)."""
    token_ids: tuple[int, ...]
    """What was said, shape (tokens,)."""
    text: str
    """As the environment was given it."""
    calls: int
    """Tool calls of the episode before this turn."""
    before: bytes | None
    """Snapshot of the environment before this turn; ``None`` where none was taken."""


class StoredEpisode(NamedTuple):
    """An episode that has ended."""

    steps: tuple[StoredStep, ...]
    """Its turns."""
    tool_history: tuple[str, ...]
    """All its tool calls, in the form that dialogue states have."""


class _Entry(NamedTuple):
    key: Hashable
    step: int
    episode: StoredEpisode


class StoredEpisodes:
    """Episodes that can be used again, each once. Not thread-safe.

    Args:
        most: Most episodes held; those of the oldest step go first, by a random rank among them.
        least_chance: A turn is asked for in advance if its prompt is at least so probable to come true.
    """

    def __init__(self, *, most: int = 4096, least_chance: float = 0.3) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1 episode, got {most}")
        if not 0 < least_chance <= 1:
            raise ValueError(f"least_chance must lie in (0, 1], got {least_chance}")
        self._step = 0
        self._most = most
        self._least_chance = least_chance
        self._entries: dict[int, _Entry] = {}
        self._by_key: dict[Hashable, list[int]] = {}
        self._order: list[tuple[int, int, int]] = []
        self._next = 0
        self._same = self._compared = 1.0

    @property
    def depth(self) -> int:
        """Most turns that are asked for at once; 1 is turn by turn."""
        depth, chance = 1, self._same / self._compared
        while chance**depth >= self._least_chance and depth < 64:
            depth += 1
        return depth

    def close_step(self) -> None:
        """Episodes stored so far can be used from now on."""
        self._step += 1

    def add(self, key: Hashable, episode: StoredEpisode, *, rank: int) -> None:
        """Store an episode.

        Args:
            key: All that the environment's answers depend on beside the turns, and the first prompt.
            episode: The episode.
            rank: A random number that must not depend on what was said.
        """
        if not episode.steps:
            return
        number, self._next = self._next, self._next + 1
        self._entries[number] = _Entry(key, self._step, episode)
        self._by_key.setdefault(key, []).append(number)
        heapq.heappush(self._order, (self._step, rank, number))
        while len(self._entries) > self._most:
            self._remove(heapq.heappop(self._order)[2])
        if len(self._order) > 2 * self._most:
            self._order = sorted(place for place in self._order if place[2] in self._entries)

    def take(self, key: Hashable, *, pick: int) -> StoredEpisode | None:
        """Use an episode of ``key`` from the latest earlier step that has one; ``None`` if there is none.

        Args:
            key: As in ``add``.
            pick: A random number that chooses among equals.
        """
        closed = [n for n in self._by_key.get(key, ()) if self._entries[n].step < self._step]
        if not closed:
            return None
        latest = self._entries[closed[-1]].step
        equals = [n for n in closed if self._entries[n].step == latest]
        return self._remove(equals[pick % len(equals)])

    def compare(self, came_true: bool) -> None:
        """Learn whether a forecast turn, and the answer to it, came true; newer ones weigh more."""
        self._same = 0.98 * self._same + came_true
        self._compared = 0.98 * self._compared + 1

    def _remove(self, number: int) -> StoredEpisode | None:
        entry = self._entries.pop(number, None)
        if entry is None:
            return None
        numbers = self._by_key[entry.key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[entry.key]
        return entry.episode
