"""Earlier episodes of one process, which predict the environment's answers in later episodes."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_SIBLINGS = 16  #: latest episodes to keep per key


class StoredStep(NamedTuple):
    text: str  #: passed to the environment
    before: bytes  #: snapshot of the environment before the turn; empty if the environment is not forked
    answer: str  #: the environment's messages in OpenAI's format, as JSON
    calls: tuple[str, ...] = ()  #: in canonical form


StoredEpisode = tuple[StoredStep, ...]


class StoredEpisodes:
    """Episodes of environments created with the same arguments, by key (see ``add``). Not thread-safe.

    Args:
        max_bytes: Limit of all stored episodes together; episodes of the least recently used key are evicted first.
    """

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, got {max_bytes}")
        self._free_bytes = max_bytes
        self._episodes: OrderedDict[Hashable, deque[StoredEpisode]] = OrderedDict()

    def of(self, key: Hashable) -> list[StoredEpisode]:
        return [*reversed(self._episodes.get(key, ()))]

    def add(self, key: Hashable, episode: StoredEpisode) -> None:
        """Store an episode; ``key`` holds everything except the turns that the environment's answers depend on."""
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
    """Return the steps that will probably follow.

    Args:
        episodes: Episodes that equal the current episode up to step ``position``, latest first.
        min_probability: Least probability of a step together with the steps before it. The estimate is the share of
            ``episodes`` that took this path, after adding one episode that did not.

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
        # After the first step, branches also differ by the previous answer, which the next turn depends on.
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
        made: The calls so far, in canonical form; only episodes that began with these calls count.

    Example:
        >>> a, b, c = (StoredStep(text, b"", "", (text,)) for text in "abc")
        >>> likely_calls([(a, b), (a, c, b), (b, c)], ["a"], 0.5)
        ['b']
    """
    counts: Counter[tuple[str, ...]] = Counter()
    texts: dict[tuple[str, ...], str] = {}
    matching = 0
    for episode in episodes:
        calls = [call for step in episode for call in step.calls]
        if calls[: len(made)] != list(made):
            continue
        matching += 1
        position, later = 0, set()
        for step in episode:
            if step.calls and position >= len(made):
                later.add(step.calls)
                texts.setdefault(step.calls, step.text)
            position += len(step.calls)
        counts.update(later)
    return [texts[calls] for calls, count in counts.items() if count >= min_probability * (matching + 1)]


def _size(episode: StoredEpisode) -> int:
    return sum(len(step.before) + len(step.text) + len(step.answer) for step in episode)
