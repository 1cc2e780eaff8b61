"""Seconds of engine steps without drafts (plain steps) by number of requests, learned only from plain steps.

Request counts are grouped by powers of two. The median of a group's last steps is a knot, with straight lines between
knots. Beyond the knots the line continues within safe bounds: a step of more requests is no faster, and a step of
fewer requests takes no less per request. So an unseen number of requests needs no plain steps of its own. Prompt
tokens add to a step at a separately learned rate.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from statistics import median

_STEPS = 24  #: steps of a group, the newest, that its median covers
_LEAST = 6  #: minimum steps of a group before its median is used
_KEPT = 0.98  #: factor on the statistics of prompt tokens after a step
_FEW = 4, 16  #: prompt tokens that count as negligible while their cost is unknown: per request, plus a constant


class PlainSeconds:
    def __init__(self) -> None:
        self._steps: dict[int, deque[tuple[int, float]]] = {}
        self._touched: set[int] = set()
        self._knots: dict[int, tuple[float, float]] = {}  #: per group: mean requests and median seconds
        self.most = 0.0  #: seconds of the longest kind of step known, 0 before the first
        self._known: dict[int, float] = {}
        #: of recent steps: number, means of prompt tokens and of seconds in excess of the knots, centred sums
        self._weight = self._tokens = self._rest = self._square = self._product = 0.0

    @property
    def knots(self) -> dict[int, float]:
        """Median seconds by group, keyed by the smallest power of two not below the requests."""
        return {1 << kind: self._knots[kind][1] for kind in sorted(self._knots)}

    @property
    def by_prompt_token(self) -> float:
        """Seconds per prompt token, 0 while unknown."""
        return max(0.0, self._product / self._square) if self._square > 0 else 0.0

    def is_informative(self, rows: int, prompt_tokens: int) -> bool:
        """Return whether a step spends most of its time on decoding, not on prompt tokens."""
        if prompt_tokens <= _FEW[0] * rows + _FEW[1]:
            return True
        rate = self.by_prompt_token
        return 0 < rate * prompt_tokens <= self.seconds(rows)

    def seconds(self, rows: int) -> float:
        """Return the expected seconds of a step of ``rows`` requests without prompt tokens, 0 while unknown."""
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
        # Beyond the knots: between "as long as the nearest knot" and "in proportion to the requests".
        flat, steep = sorted((seconds, seconds * rows / near))
        if len(knots) == 1:
            return flat
        (low, fast), (high, slow) = knots[:2] if at == 0 else knots[-2:]
        return min(max(seconds + (slow - fast) / (high - low) * (rows - near), flat), steep)

    def begin(self) -> None:
        """Start a new series of plain steps; earlier steps may be out of date."""
        self._steps.clear()
        self._touched.clear()

    def observe(self, rows: int, seconds: float, prompt_tokens: int) -> bool:
        """Record a plain step for the next ``settle``; return whether the step was informative."""
        measured = self.is_informative(rows, prompt_tokens)
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
        """Update the knots and return the ratio of measured to expected seconds.

        The knots of all other groups scale by this ratio, because a machine that becomes busy slows every step.
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
