"""Which drafts are worth verifying, learnt from the engine's own steps.

A step that verifies n draft tokens costs T(n) = a + b n seconds and emits E(n)
tokens. Tokens per second E / T grow with one more node of acceptance p exactly
while p / E > b / T, so every node with p >= b E / T is worth it, wherever in
the batch it is. T is fitted to measured steps; p is the store's estimate,
corrected by how often nodes with such an estimate were accepted of late. Both
forget, so that a policy that sharpens, or a machine that gets busy, is noticed,
and what was given up is tried again. No draft at all is a possible answer.

The budget only ever leaves drafts out; it cannot change what is sampled.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BUCKETS = 20
_PRIOR = 6.0
"""Nodes that the store's own estimate counts for in each bucket."""
_MEMORY = 0.99
"""Share of what was learnt that remains after a step."""
_WARM = 12
"""Steps before the fit is believed."""


class DraftBudget:
    """Chooses the least path probability that a draft node must have."""

    def __init__(self, floor: float) -> None:
        """Start believing the store.

        Args:
            floor: Nodes of a smaller estimated path probability are never verified.
        """
        self._floor = floor
        self._drafted = np.zeros(_BUCKETS)
        self._accepted = np.zeros(_BUCKETS)
        self._moments = np.zeros(5)
        """Decayed sums: weight, tokens, seconds, tokens squared, tokens times seconds."""
        self._emitted = 0.0
        self._steps = 0

    @property
    def threshold(self) -> float:
        """Least estimated path probability worth verifying; above 1 nothing is."""
        needed = self.needed
        if needed is None:
            return self._floor
        center = (np.arange(_BUCKETS) + 0.5) / _BUCKETS
        share = (self._accepted + _PRIOR * center) / (self._drafted + _PRIOR)
        worth = share >= needed
        if worth.all():
            return self._floor
        lowest = int(np.flatnonzero(~worth)[-1]) + 1
        return max(self._floor, lowest / _BUCKETS) if lowest < _BUCKETS else math.inf

    @property
    def needed(self) -> float | None:
        """Acceptance that pays for a draft token, b E / T; ``None`` while too little was measured."""
        weight, tokens, seconds, squares, products = self._moments
        if self._steps < _WARM or seconds <= 0:
            return None
        variance = squares / weight - (tokens / weight) ** 2
        if variance < 1e-3 * (tokens / weight) ** 2:
            return None
        slope = (products / weight - tokens * seconds / weight**2) / variance
        return float(max(slope, 0.0) * (self._emitted / weight) / (seconds / weight))

    def observe(
        self,
        *,
        estimates: NDArray[np.float32],
        accepted: NDArray[np.bool_],
        tokens: int,
        seconds: float,
        emitted: int,
    ) -> None:
        """Learn from a step.

        Args:
            estimates: The store's path probability of each verified node, shape (nodes,).
            accepted: Whether the policy sampled it, shape (nodes,).
            tokens: Tokens that the model ran over, drafts included.
            seconds: Wall time of the step.
            emitted: Tokens that the step emitted.
        """
        self._steps += 1
        for kept in (self._drafted, self._accepted, self._moments):
            kept *= _MEMORY
        self._emitted *= _MEMORY
        bucket = np.minimum((estimates * _BUCKETS).astype(np.int64), _BUCKETS - 1)
        self._drafted += np.bincount(bucket, minlength=_BUCKETS)
        self._accepted += np.bincount(bucket, weights=accepted, minlength=_BUCKETS)
        weight, _, total = self._moments[:3]
        if weight > 1:
            seconds = min(seconds, 2 * total / weight)  # a hiccup of the machine is not a cost of tokens
        self._moments += (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._emitted += emitted
