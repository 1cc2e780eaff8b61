"""How many drafts agree with the tokens that the policy samples, by depth: counts of one batch, and the recent rate.

A drafted step knows this from its verification. While drafts are off, the draft store drafts for earlier plain steps
from what it knew before them ("shadow" drafts). The policy's tokens of the next steps tell what a drafted step would
have accepted, and nothing runs on the device. Both kinds estimate the same probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

_RECENT = 128.0  #: requests, summed over batches, of which the rate remembers about the last
_UNSEEN = 1 / 32  #: a batch of shorter drafts counts so much for forgetting the depths that it lacks
_PRIOR = 2.0  #: weight, in requests, of the rate of the depth before; before the first depth the rate is 0


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
    shadow: bool  #: made for an earlier plain step, not verified by the device

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
            more = 0, width - len(self._tried)
            self._tried, self._agreed, self._kept = (
                np.pad(one, more) for one in (self._tried, self._agreed, self._kept)
            )
        # What is known of depths beyond this batch's width fades slowly, until the rate there is that of the depth
        # before. So longer drafts are tried again.
        fading = np.where(np.arange(len(self._tried)) < width, kept, kept**_UNSEEN)
        self._tried *= fading
        self._agreed *= fading
        self._tried[:width] += np.concatenate([[agreement.rows], agreement.agreed[:-1]])
        self._agreed[:width] += agreement.agreed
        self._rows = kept * self._rows + agreement.rows
        rate, product = 0.0, 1.0
        for depth, (tried, agreed) in enumerate(zip(self._tried.tolist(), self._agreed.tolist(), strict=True)):
            rate = (agreed + _PRIOR * rate) / (tried + _PRIOR)
            product *= rate
            self._kept[depth] = product

    def tokens(self, width: int, *, errors: float = 0.0) -> float:
        """Return the expected tokens per request with drafts of ``width``, minus ``errors`` standard errors."""
        kept = self._kept[:width]
        mean = float(kept.sum())
        if not errors:
            return 1 + mean
        square = float(((2 * np.arange(len(kept)) + 1) * kept).sum())
        return 1 + max(0.0, mean - errors * sqrt(max(square - mean * mean, 0.0) / (self._rows + _PRIOR)))
