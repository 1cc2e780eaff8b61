"""Two running sums that move away from 0 when rollouts stop being samples of the policy.

At each position, given all earlier tokens, the emitted token is a drafted one with known probability m, and -log p of
the emitted token has the entropy H of its distribution as its mean. Summed over a training step,

    acceptance z = sum(accepted - m) / sqrt(sum m (1 - m))
    entropy z    = sum(-log p - H) / sqrt(sum Var[-log p])

are both near N(0, 1) for exact rollouts (sums of martingale differences). A value far from 0 shows a fault. A value
near 0 only shows that these two means are right: wrong tokens with the usual likelihood go unnoticed.

Instead of the drafted children, any set of tokens that is independent of the position's noise will do. For a stored
turn verified by the ratio rule (``verify.ratio_chain``), use the set ``p > q``, its mass m, and the emitted tokens in
the set: a rule with a wrong residual (the distribution after a rejection) samples these tokens too rarely.

Distributions are taken after all sampling transforms. Not covered: a stored turn as the set of drafted children, if
it is verified by the ratio rule or with the noise that sampled it. Draft and noise are then dependent, so leave its
positions out of the acceptance sums. Also not covered: policies trained on the stored turn (level C), for which
neither sum has mean 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Surprise(NamedTuple):
    """Moments of -log p under p itself, each of shape (...)."""

    entropy: Floats  #: mean, nats
    variance: Floats  #: nats squared


def surprise(p: Floats) -> Surprise:
    """Return mean and variance of -log p for distributions of shape (..., vocabulary).

    >>> surprise(np.array([0.5, 0.5])).entropy.round(4), surprise(np.array([0.5, 0.5])).variance
    (np.float64(0.6931), np.float64(0.0))
    """
    nats = -np.log(np.where(p > 0, p, 1.0))
    entropy = (p * nats).sum(-1)
    return Surprise(entropy, (p * (nats - entropy[..., None]) ** 2).sum(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSums:
    """Sums of the two monitors over any number of positions; sums add."""

    accepted: float = 0.0  #: positions at which the emitted token was a drafted child (or in the set used instead)
    expected: float = 0.0  #: sum of m, the policy's mass on the drafted children, over positions that have any
    variance: float = 0.0  #: sum of m (1 - m) over these positions
    surprise: float = 0.0  #: sum of -log p over the emitted tokens, nats
    entropy: float = 0.0  #: sum of the entropies of the distributions of these tokens, nats
    entropy_variance: float = 0.0  #: sum of the variances of -log p under these distributions, nats squared

    def __add__(self, other: MonitorSums) -> MonitorSums:
        return MonitorSums(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    @property
    def acceptance_z(self) -> float | None:
        """Standard normal if exact; above 0: too many drafts are accepted. ``None`` if nothing was random."""
        return _z(self.accepted - self.expected, self.variance)

    @property
    def entropy_z(self) -> float | None:
        """Standard normal if exact; below 0: tokens are too likely. ``None`` if nothing was random."""
        return _z(self.surprise - self.entropy, self.entropy_variance)


def _z(excess: float, variance: float) -> float | None:
    return excess / math.sqrt(variance) if variance > 0 else None
