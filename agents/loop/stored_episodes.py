"""Earlier episodes of one process, each a forecast of its environment's answers."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_SIBLINGS = 16  #: episodes per key


class StoredStep(NamedTuple):
    text: str  #: passed to the environment
    before: bytes  #: snapshot of the environment before the turn; empty if it is not forked
    answer: str  #: the environment's messages in OpenAI's format, as JSON
    calls: tuple[str, ...] = ()  #: in canonical form


StoredEpisode = tuple[StoredStep, ...]


class StoredEpisodes:
    """Episodes of environments made with the same arguments, by their beginning. Not thread-safe.

    Args:
        max_bytes: Limit of all stored episodes; episodes of the least recently played beginning are evicted first.
    """

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        self._free_bytes = max_bytes
        self._episodes: OrderedDict[Hashable, deque[StoredEpisode]] = OrderedDict()

    def of(self, key: Hashable) -> list[StoredEpisode]:
        return [*reversed(self._episodes.get(key, ()))]

    def add(self, key: Hashable, episode: StoredEpisode) -> None:
        """Store an episode; ``key`` is everything besides the turns on which answers depend."""
        siblings = self._episodes.setdefault(key, deque())
        self._episodes.move_to_end(key)
        siblings.append(episode)
        self._free_bytes -= _size(episode)
        if len(siblings) > _SIBLINGS:
            self._free_bytes += _size(siblings.popleft())
        while self._free_bytes < 0:
            oldest = next(iter(self._episodes))
            self._free_bytes += _size(self._episodes[oldest].popleft())
            if not self._episodes[oldest]:
                del self._episodes[oldest]


def likely_steps(episodes: Sequence[StoredEpisode], position: int, min_probability: float) -> StoredEpisode:
    """Return the steps that will probably come.

    Args:
        episodes: Episodes that equal the present one up to step ``position``, latest first.
        min_probability: Of each step together with the steps before it. Estimated as the share of the episodes that
            took this path, with one more episode that did not.

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
        longer = [episode for episode in episodes if len(episode) > position]
        # After the first step, the answer to the step before must agree too: it leads to the state of the next one.
        branches = Counter((after and episode[position - 1].answer, episode[position].text) for episode in longer)
        branch, count = branches.most_common(1)[0] if branches else (None, 0)
        if not count or count < least:
            return tuple(steps)
        episodes = [
            episode for episode in longer if (after and episode[position - 1].answer, episode[position].text) == branch
        ]
        steps.append(episodes[0][position])
        position += 1


def likely_calls(episodes: Sequence[StoredEpisode], made: Sequence[str], min_probability: float) -> list[str]:
    """Return texts of turns whose calls will probably be made, in this state or a later one.

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
        position, later = 0, set()
        for step in episode:
            if step.calls and position >= len(made):
                later.add(step.calls)
                texts.setdefault(step.calls, step.text)
            position += len(step.calls)
        counts.update(later)
    return [texts[calls] for calls, count in counts.items() if count >= min_probability * (alike + 1)]


def _size(episode: StoredEpisode) -> int:
    return sum(len(step.before) + len(step.text) + len(step.answer) for step in episode)
