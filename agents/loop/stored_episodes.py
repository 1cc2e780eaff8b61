"""Earlier episodes of one process, each a forecast of what its environment will answer."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_SIBLINGS = 16
"""Most episodes of one beginning."""


class StoredStep(NamedTuple):
    """One turn of an episode."""

    text: str
    """What the environment was given."""
    before: bytes
    """Snapshot of the environment before it; empty where it is not forked."""
    answer: str
    """The messages that the environment answered with, in OpenAI's format, as JSON."""
    calls: tuple[str, ...] = ()
    """Its tool calls, in canonical form."""


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


def likely_steps(episodes: Sequence[StoredEpisode], place: int, min_probability: float) -> StoredEpisode:
    """The steps that will probably come.

    Args:
        episodes: Those that went until step ``place`` as the present one, the latest first.
        min_probability: Of each step together with those before it. Estimated as the share of the episodes that went
            there, with one more that went elsewhere.

    Example:
        >>> a, b, c = (StoredStep(text, b"", "") for text in "abc")
        >>> [step.text for step in likely_steps([(a, b), (a, b), (a, c), (a, c), (a, c)], 0, 0.5)]
        ['a', 'c']
        >>> [step.text for step in likely_steps([(a, b), (a, c), (c, c)], 0, 0.5)]
        ['a']
    """
    least = min_probability * (len(episodes) + 1)
    steps: list[StoredStep] = []
    while True:
        after = steps[-1].answer if steps else None
        nexts = [one for one in episodes if len(one) > place]
        ways = Counter((after and one[place - 1].answer, one[place].text) for one in nexts)
        way, count = ways.most_common(1)[0] if ways else (None, 0)
        if not count or count < least:
            return tuple(steps)
        episodes = [one for one in nexts if (after and one[place - 1].answer, one[place].text) == way]
        steps.append(episodes[0][place])
        place += 1


def likely_calls(episodes: Sequence[StoredEpisode], made: Sequence[str], min_probability: float) -> list[str]:
    """Texts of turns whose calls will probably be made, in this state or a later one.

    Args:
        made: The calls so far, in canonical form; only episodes that made them count.

    Example:
        >>> a, b, c = (StoredStep(text, b"", "", (text,)) for text in "abc")
        >>> likely_calls([(a, b), (a, c, b), (b, c)], ["a"], 0.5)
        ['b']
    """
    counts: Counter[tuple[str, ...]] = Counter()
    texts: dict[tuple[str, ...], str] = {}
    alike = 0
    for episode in episodes:
        calls = [call for step in episode for call in step.calls]
        if calls[: len(made)] != list(made):
            continue
        alike += 1
        place, later = 0, set()
        for step in episode:
            if step.calls and place >= len(made):
                later.add(step.calls)
                texts.setdefault(step.calls, step.text)
            place += len(step.calls)
        counts.update(later)
    return [texts[calls] for calls, count in counts.items() if count >= min_probability * (alike + 1)]


def _size(episode: StoredEpisode) -> int:
    return sum(len(step.before) + len(step.text) + len(step.answer) for step in episode)
