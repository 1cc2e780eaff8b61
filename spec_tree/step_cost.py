"""What a step of the engine costs, learnt from the steps that it makes.

A step of B requests that runs the model over m tokens, drafts included, is
taken to last g(m) + r B seconds. g only rises, in whatever way: an accelerator
is flat until its width is full and rises after it, a CPU rises from the first
token. g is a table of measured averages by m, made monotone, a straight line
between them; r, and g beyond what was measured, come from a linear fit. Both
start from a prior and forget, so that a machine that gets busy is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

_PER_DOUBLING = 4
"""Entries of the table for twice as many tokens."""
_ENTRIES = 20 * _PER_DOUBLING
_WIDTH = 8.0
"""Tokens that cost as much as an empty step, where nothing is measured: a small CPU, where drafts pay least."""
_RECENT = 20.0
"""Steps that an entry averages over."""
_IDLE = 0.998
"""Share of an entry that remains after a step of another size."""
_FIT_MEMORY = 0.99
_PRIOR = 0.5
"""Steps that each of the three points of the prior counts for."""
_EAGER, _FIT_EVERY = 50, 12
"""The table is made anew after each of so many first steps, then after every so many."""
_DRIFT = 0.05
"""Power of the ratio of a step's seconds to the expected ones that steps of all sizes are scaled by."""
_SETTLING = 2
"""First steps that are not believed: they compile and allocate."""
_HICCUP = 2.0
"""A step is taken to last at most this many times what was expected."""

Floats = NDArray[np.float64]


class StepCost:
    """Seconds of a step by its requests and tokens.

    Example:
        >>> cost = StepCost.measure(lambda rows, tokens: 0.01 + 0.001 * tokens, [(8, 8), (8, 16), (8, 64)])
        >>> cost.seconds(8, [8, 40]).round(2).tolist()
        [0.02, 0.05]
    """

    def __init__(self) -> None:
        self._sums = np.zeros((_ENTRIES, 4))
        """Per entry: weight, requests, tokens, seconds."""
        self._gram = np.zeros((3, 3))
        self._right = np.zeros(3)
        self._steps = 0
        self._line = np.array([1.0, 0.0, 1.0 / _WIDTH])
        """Seconds at rest, by request, by token."""
        self._knots: Floats = np.zeros((2, 0))
        """Tokens, and seconds but for the requests' part."""
        self._unfitted = 0

    @classmethod
    def measure(
        cls, step_time: Callable[[int, int], float], sizes: Iterable[tuple[int, int]], *, repeats: int = 3
    ) -> StepCost:
        """Begin with a table that is measured.

        Args:
            step_time: Runs a step of so many requests and so many tokens; returns its seconds.
            sizes: Requests and tokens of the steps to run.
            repeats: How often each is run; the median counts.
        """
        cost = cls()
        cost._steps = _SETTLING
        for rows, tokens in sizes:
            seconds = float(np.median([step_time(rows, tokens) for _ in range(repeats)]))
            for _ in range(repeats):
                cost._add(rows, tokens, seconds)
        return cost

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Learn from a step of ``rows`` requests over ``tokens`` tokens."""
        self._steps += 1
        if self._steps <= _SETTLING:
            return
        if self._steps > 2 * _SETTLING:
            expected = float(self.seconds(rows, [tokens])[0])
            seconds = min(seconds, _HICCUP * expected)
            drift = (seconds / expected) ** _DRIFT
            self._sums[:, 3] *= drift
            self._right *= drift
        self._add(rows, tokens, seconds)

    def seconds(self, rows: int, tokens: ArrayLike) -> Floats:
        """Expected seconds of steps of ``rows`` requests, by their ``tokens``, of the same shape."""
        if self._unfitted and (self._steps < _EAGER or self._unfitted >= _FIT_EVERY):
            self._fit()
        rest, by_row, by_token = self._line
        at = np.asarray(tokens, np.float64)
        x, y = self._knots
        if not len(x):
            return np.asarray(rest + by_row * rows + by_token * at)
        beyond = np.maximum(at - x[-1], 0) - np.maximum(x[0] - at, 0)
        inside = np.interp(at, x, y) + by_token * beyond
        return np.asarray(np.maximum(inside, 0.1 * y[0]) + by_row * rows)

    def weight(self, tokens: int) -> float:
        """Recent steps of about so many tokens that were measured."""
        return float(self._sums[_entry(tokens), 0])

    def _add(self, rows: int, tokens: int, seconds: float) -> None:
        self._sums *= _IDLE
        entry = self._sums[_entry(tokens)]
        entry *= _RECENT / (_RECENT + 1)
        entry += 1.0, rows, tokens, seconds
        point = np.array([1.0, rows, tokens])
        self._gram = _FIT_MEMORY * self._gram + np.outer(point, point)
        self._right = _FIT_MEMORY * self._right + point * seconds
        self._unfitted += 1

    def _fit(self) -> None:
        count, rows, tokens = self._gram[0]
        scale = self._right[0] / (count + tokens / _WIDTH)
        b, m = rows / count, tokens / count
        prior = np.array([[1.0, 0.0, 0.0], [1.0, b, 2 * m], [1.0, 2 * b, m]])
        gram = self._gram + _PRIOR * prior.T @ prior
        right = self._right + _PRIOR * prior.T @ (scale * (1 + prior[:, 2] / _WIDTH))
        self._line = np.maximum(np.linalg.solve(gram, right), 0.0)
        self._knots = self._table()
        self._unfitted = 0

    def _table(self) -> Floats:
        weight, rows, tokens, seconds = self._sums[self._sums[:, 0] > 0.2].T
        rest, by_row, by_token = self._line
        at = tokens / weight
        measured = seconds / weight - by_row * rows / weight
        believed = (weight * measured + _PRIOR * (rest + by_token * at)) / (weight + _PRIOR)
        return np.stack([at, rising(believed, weight + _PRIOR)])


def rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values that never fall, by weighted squares (pool adjacent violators), shape (n,)."""
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while means and means[-1] >= value:
            mass = masses.pop()
            value = (means.pop() * mass + value * weight) / (mass + weight)
            weight += mass
            size += sizes.pop()
        means.append(value)
        masses.append(weight)
        sizes.append(size)
    return np.repeat(means, sizes)


def _entry(tokens: int) -> int:
    return min(round(_PER_DOUBLING * float(np.log2(max(tokens, 1)))), _ENTRIES - 1)
