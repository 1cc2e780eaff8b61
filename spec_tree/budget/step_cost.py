"""Cost of an engine step, learned from the engine's steps.

A step of B requests over m tokens, drafts included, is modelled as g(m) + r B seconds. g never falls, but may have
any shape: on an accelerator g is flat until the chip is full, on a CPU g rises from the first token. A table holds
measured averages by m, made monotone and interpolated linearly. r, and g beyond the table, come from a linear fit.
Both start from a prior and forget old steps, so a machine that becomes busy shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turntree.spec_tree.kernels.compiled import kernel, part

_PER_DOUBLING = 4  #: entries of the table per doubling of the tokens
_ENTRIES = 20 * _PER_DOUBLING
_WIDTH = 8.0  #: prior: tokens that cost as much as an empty step, for a small CPU, where drafts pay least
_RECENT = 20.0  #: steps over which an entry is averaged
_IDLE = 0.998  #: factor on an entry after a step of another size
_FIT_MEMORY = 0.99
_PRIOR = 0.5  #: weight, in steps, of each of the three points of the prior
_EAGER, _FIT_EVERY = 50, 12  #: the table is rebuilt after each of the first 50 steps, then every 12 steps
_DRIFT = 0.05  #: exponent of the ratio of measured to expected seconds by which all entries are scaled
_SETTLING = 2  #: first steps that are ignored: they compile and allocate
_HICCUP = 2.0  #: cap of the seconds that count for one step, as a multiple of the expected seconds

Floats = NDArray[np.float64]

#: record of the step costs, as the kernels read and write it
COST = np.dtype(
    [
        ("sums", np.float64, (_ENTRIES, 4)),  # per entry: weight, requests, tokens, seconds
        ("gram", np.float64, (3, 3)),
        ("right", np.float64, 3),
        ("line", np.float64, 3),  # seconds of an empty step, per request, per token
        ("at", np.float64, _ENTRIES),  # tokens of the table's knots
        ("takes", np.float64, _ENTRIES),  # g at these knots: seconds without the part r B for the requests
        ("knots", np.int64),
        ("steps", np.int64),
        ("unfitted", np.int64),
    ]
)


def entry_of(tokens: int) -> int:
    return min(math.floor(_PER_DOUBLING * math.log2(max(tokens, 1)) + 0.5), _ENTRIES - 1)


_entry = part(entry_of)


@part
def expected_seconds(cost: Any, rows: float, tokens: float) -> float:
    """Return the expected seconds of one step; ``cost`` is the record of a ``StepCost``."""
    rest, by_row, by_token = cost.line[0], cost.line[1], cost.line[2]
    knots = cost.knots
    if knots == 0:
        return float(rest + by_row * rows + by_token * tokens)
    low, high = 0, knots - 1
    first, last = cost.at[low], cost.at[high]
    if tokens <= first:
        inside = cost.takes[low] - by_token * (first - tokens)
    elif tokens >= last:
        inside = cost.takes[high] + by_token * (tokens - last)
    else:
        while high - low > 1:
            middle = (low + high) // 2
            if cost.at[middle] <= tokens:
                low = middle
            else:
                high = middle
        step = (tokens - cost.at[low]) / (cost.at[high] - cost.at[low])
        inside = cost.takes[low] + step * (cost.takes[high] - cost.takes[low])
    return float(max(inside, 0.1 * cost.takes[0]) + by_row * rows)


@kernel
def _expect(cost: NDArray[np.void], rows: float, tokens: Floats, seconds: Floats) -> None:
    for i in range(len(tokens)):
        seconds[i] = expected_seconds(cost[0], rows, tokens[i])


@kernel
def _take(costs: NDArray[np.void], rows: float, tokens: float, seconds: float) -> None:
    cost = costs[0]
    cost.steps += 1
    if cost.steps <= _SETTLING:
        return
    # Cap a hiccup. Shift all entries a little each step, since a lasting slowdown affects every step size.
    if cost.steps > 2 * _SETTLING:
        expected = expected_seconds(cost, rows, tokens)
        seconds = min(seconds, _HICCUP * expected)
        drift = (seconds / expected) ** _DRIFT
        for i in range(_ENTRIES):
            cost.sums[i, 3] *= drift
        for i in range(3):
            cost.right[i] *= drift
    for i in range(_ENTRIES):
        for j in range(4):
            cost.sums[i, j] *= _IDLE
    entry, kept = _entry(int(tokens)), _RECENT / (_RECENT + 1)
    cost.sums[entry, 0] = kept * cost.sums[entry, 0] + 1.0
    cost.sums[entry, 1] = kept * cost.sums[entry, 1] + rows
    cost.sums[entry, 2] = kept * cost.sums[entry, 2] + tokens
    cost.sums[entry, 3] = kept * cost.sums[entry, 3] + seconds
    for i in range(3):
        one = 1.0 if i == 0 else rows if i == 1 else tokens
        for j in range(3):
            other = 1.0 if j == 0 else rows if j == 1 else tokens
            cost.gram[i, j] = _FIT_MEMORY * cost.gram[i, j] + one * other
        cost.right[i] = _FIT_MEMORY * cost.right[i] + one * seconds
    cost.unfitted += 1


class StepCost:
    """Seconds of a step by its requests and tokens.

    Example:
        >>> cost = StepCost()
        >>> for tokens in 20 * [8, 16, 64]:
        ...     cost.observe(8, tokens, 0.01 + 0.001 * tokens)
        >>> cost.seconds(8, [8, 40]).round(2).tolist()
        [0.02, 0.05]
    """

    def __init__(self) -> None:
        self._record = np.zeros(1, COST)
        self._record["line"] = 1.0, 0.0, 1.0 / _WIDTH
        self._cost = self._record[0]

    @property
    def record(self) -> NDArray[np.void]:
        """The record, shape (1,) of ``COST``, rebuilt if due; see ``expected_seconds``."""
        cost = self._cost
        if cost["unfitted"] and (cost["steps"] < _EAGER or cost["unfitted"] >= _FIT_EVERY):
            self._fit()
        return self._record

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        _take(self.record, float(rows), float(tokens), float(seconds))

    def seconds(self, rows: int, tokens: ArrayLike) -> Floats:
        """Return the expected seconds of steps of ``rows`` requests over ``tokens`` tokens, element by element."""
        at = np.ascontiguousarray(tokens, np.float64)
        seconds = np.empty_like(at)
        _expect(self.record, float(rows), at.reshape(-1), seconds.reshape(-1))
        return seconds

    def weight(self, tokens: int) -> float:
        """Return the number of recent steps over about ``tokens`` tokens."""
        return float(self._cost["sums"][entry_of(tokens), 0])

    def _fit(self) -> None:
        cost = self._cost
        count, rows, tokens = cost["gram"][0]
        scale = cost["right"][0] / (count + tokens / _WIDTH)
        b, m = rows / count, tokens / count
        prior = np.array([[1.0, 0.0, 0.0], [1.0, b, 2 * m], [1.0, 2 * b, m]])
        gram = cost["gram"] + _PRIOR * prior.T @ prior
        right = cost["right"] + _PRIOR * prior.T @ (scale * (1 + prior[:, 2] / _WIDTH))
        cost["line"] = np.maximum(np.linalg.solve(gram, right), 0.0)
        at, takes = self._table()
        cost["at"][: len(at)], cost["takes"][: len(at)] = at, takes
        cost["knots"], cost["unfitted"] = len(at), 0

    def _table(self) -> tuple[Floats, Floats]:
        sums = self._cost["sums"]
        weight, rows, tokens, seconds = sums[sums[:, 0] > 0.2].T
        rest, by_row, by_token = self._cost["line"]
        at = tokens / weight
        measured = seconds / weight - by_row * rows / weight
        believed = (weight * measured + _PRIOR * (rest + by_token * at)) / (weight + _PRIOR)
        return at, rising(believed, weight + _PRIOR)


def rising(values: Floats, weights: Floats) -> Floats:
    """Return the nearest non-decreasing values by weighted squares (pool adjacent violators), shape (n,)."""
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
