"""How many drafts agree with the tokens that the policy samples, by depth: counts of one batch, and the recent rate.

A drafted step knows this from its verification. While drafts are off, the draft store drafts for past plain steps from
what it knew before them ("shadow" drafts); the policy's tokens of the next steps tell what a drafted step would have
accepted, and nothing runs on the device. Both kinds estimate the same probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

_RECENT = 64.0  #: requests, summed over batches, of which the rate remembers about the last
_PRIOR = 2.0  #: requests without an accepted token that the rate assumes to have seen


@dataclass(frozen=True, slots=True)
class DraftAgreement:
    """Counts over the requests of one batch.

    Example:
        >>> agreement = DraftAgreement(2, np.array([2, 1]), np.array([1, 1]), shadow=True)
        >>> agreement.width
        2
    """

    rows: int  #: requests of the batch, with or without a draft
    offered: NDArray[np.int64]  #: by depth: drafts with a token there whose outcome is known, shape (width,)
    agreed: NDArray[np.int64]  #: by depth: those of them that agreed there and at all depths before, shape (width,)
    shadow: bool  #: made for a past plain step, not verified by the device

    @property
    def width(self) -> int:
        return len(self.offered)


class AgreementRate:
    """Expected tokens per request of a drafted step, from recent batches.

    One rate serves all batch sizes: it forgets faster than the number of requests changes, and a rate by batch size
    would still hold the last epoch's agreement when the tasks of this epoch return.

    Example:
        >>> rate = AgreementRate()
        >>> for _ in range(100):
        ...     rate.learn(DraftAgreement(64, np.array([64, 48]), np.array([48, 32]), shadow=True))
        >>> [round(tokens, 1) for tokens in (rate.tokens(0), rate.tokens(1), rate.tokens(2))]
        [1.0, 1.7, 2.2]
    """

    def __init__(self) -> None:
        # by depth: requests whose drafts agreed at all depths before, and those of them that agreed at this one, too
        self._tried = np.zeros(0)
        self._agreed = np.zeros(0)
        self._rows = 0.0
        self._kept = np.zeros(0)  #: probability that at least so many drafted tokens are accepted, by depth

    @property
    def known(self) -> bool:
        return self._rows > 0

    def learn(self, agreement: DraftAgreement) -> None:
        width, kept = agreement.width, _RECENT / (_RECENT + agreement.rows)
        if width > len(self._tried):
            more = width - len(self._tried)
            self._tried, self._agreed = np.pad(self._tried, (0, more)), np.pad(self._agreed, (0, more))
        # Depths beyond this batch's width keep what they know.
        self._tried[:width] *= kept
        self._agreed[:width] *= kept
        self._tried[:width] += np.concatenate([[agreement.rows], agreement.agreed[:-1]])
        self._agreed[:width] += agreement.agreed
        self._rows = kept * self._rows + agreement.rows
        first = self._tried.copy()
        first[:1] += _PRIOR
        self._kept = np.cumprod(np.divide(self._agreed, first, out=np.zeros_like(first), where=first > 0))

    def tokens(self, width: int, *, errors: float = 0.0) -> float:
        """Return the expected tokens per request with drafts of ``width``, minus ``errors`` standard errors."""
        kept = self._kept[:width]
        mean = float(kept.sum())
        if not errors:
            return 1 + mean
        square = float(((2 * np.arange(len(kept)) + 1) * kept).sum())
        return 1 + max(0.0, mean - errors * sqrt(max(square - mean * mean, 0.0) / (self._rows + _PRIOR)))
