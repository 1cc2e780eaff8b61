"""Seconds of an engine's step without drafts, by its requests, from such steps alone.

Per class of requests, the powers of two, the median of the last steps is a knot; a straight line goes from knot to
knot. Beyond them the line goes on, but never above what is sure: a step of more requests is no faster, and one of
fewer requests takes no less per request. So a number of requests that was never seen without drafts needs no steps of
its own if the draft from below is enough. Prompt tokens add to a step by a rate that is learnt beside.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from statistics import median

_STEPS = 24
"""Steps of a class whose median counts."""
_LEAST = 6
"""Steps of a class before they do."""
_KEPT = 0.98
"""Share of what is known of prompt tokens that remains after a step."""
_FEW = 4, 16
"""Prompt tokens that hardly count, while their cost is unknown: by request, and a constant."""


class PlainSeconds:
    """Learns what steps without drafts last."""

    def __init__(self) -> None:
        self._steps: dict[int, deque[tuple[int, float]]] = {}
        self._touched: set[int] = set()
        self._knots: dict[int, tuple[float, float]] = {}
        """By class: mean requests and median seconds."""
        self.most = 0.0
        """Seconds of the longest kind of step known, 0 before the first."""
        self._known: dict[int, float] = {}
        self._weight = self._tokens = self._rest = self._square = self._product = 0.0
        """Recent steps: their number, means of prompt tokens and of seconds beside the knots, centred sums."""

    @property
    def knots(self) -> dict[int, float]:
        """Median seconds by class, the power of two that is not below the requests."""
        return {1 << kind: self._knots[kind][1] for kind in sorted(self._knots)}

    @property
    def by_prompt_token(self) -> float:
        """Seconds of a prompt token, 0 while unknown."""
        return max(0.0, self._product / self._square) if self._square > 0 else 0.0

    def tells(self, rows: int, prompt_tokens: int) -> bool:
        """Whether a step is not mostly the work on its prompts."""
        if prompt_tokens <= _FEW[0] * rows + _FEW[1]:
            return True
        rate = self.by_prompt_token
        return 0 < rate * prompt_tokens <= self.seconds(rows)

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step of ``rows`` requests and no prompt tokens; 0 as long as nothing is known."""
        if not self._knots:
            return 0.0
        if rows not in self._known:
            self._known[rows] = self._line(rows)
        return self._known[rows]

    def _line(self, rows: int) -> float:
        knots = sorted(self._knots.values())
        at = bisect(knots, (rows, 0.0))
        if 0 < at < len(knots):
            (low, fast), (high, slow) = knots[at - 1 : at + 1]
            return fast + (slow - fast) * (rows - low) / (high - low)
        near, seconds = knots[0] if at == 0 else knots[-1]
        flat, steep = sorted((seconds, seconds * rows / near))
        if len(knots) == 1:
            return flat
        (low, fast), (high, slow) = knots[:2] if at == 0 else knots[-2:]
        return min(max(seconds + (slow - fast) / (high - low) * (rows - near), flat), steep)

    def begin(self) -> None:
        """Steps without drafts begin: those before were on another day."""
        self._steps.clear()
        self._touched.clear()

    def observe(self, rows: int, seconds: float, prompt_tokens: int) -> bool:
        """Count a step without drafts; returns whether it measured something. ``settle`` makes it count."""
        measured = self.tells(rows, prompt_tokens)
        rate = self.by_prompt_token
        self._see_prompts(prompt_tokens, seconds - self.seconds(rows))
        if measured:
            kind = (rows - 1).bit_length()
            self._steps.setdefault(kind, deque(maxlen=_STEPS)).append((rows, max(seconds - rate * prompt_tokens, 0.0)))
            self._touched.add(kind)
        return measured

    def _see_prompts(self, tokens: int, rest: float) -> None:
        self._weight = _KEPT * self._weight + 1
        far, over = tokens - self._tokens, rest - self._rest
        self._tokens += far / self._weight
        self._rest += over / self._weight
        self._square = _KEPT * self._square + far * (tokens - self._tokens)
        self._product = _KEPT * self._product + far * (rest - self._rest)

    def settle(self) -> float:
        """Renew the knots of the classes seen; returns by how much steps are slower than they were expected, 1 if even.

        The other knots are changed with them: where the machine has become busy, it is so for all steps.
        """
        new: dict[int, tuple[float, float]] = {}
        before = after = 0.0
        for kind in self._touched:
            steps = self._steps[kind]
            if len(steps) < _LEAST and self._knots:
                continue
            rows = sum(rows for rows, _ in steps) / len(steps)
            new[kind] = rows, median(seconds for _, seconds in steps)
            if kind in self._knots:
                before, after = before + self._line(round(rows)), after + new[kind][1]
        ratio = after / before if before > 0 else 1.0
        for kind, (rows, seconds) in self._knots.items():
            self._knots[kind] = rows, seconds * ratio
        self._knots |= new
        self.most = max((seconds for _, seconds in self._knots.values()), default=0.0)
        self._known.clear()
        self._touched.clear()
        return ratio
