"""How many drafts of one batch agreed with the tokens that the policy sampled, by depth.

A drafted step knows this from its verification. While drafts are off, the draft store drafts for past plain steps from
what it knew before them ("shadow" drafts); the policy's tokens of the next steps tell what a drafted step would have
accepted, and nothing runs on the device. Both kinds estimate the same probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
