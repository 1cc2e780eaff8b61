from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.store.turn_store import LogEntry, TurnStore

_MIN_RATIO = 0.5  #: a turn is dropped if its fraction of right votes is below this factor times the own turns' fraction
_MIN_VOTES = 64  #: own turns' votes before any turn is dropped; also prior votes of all imported turns, at the own rate
_PRIOR_VOTES = 16  #: prior votes of each imported turn, at the rate of all imported turns
_MAX_VOTES = 1 << 16  #: votes of own turns after which all votes are halved, since the policy changes
#: Tokens sampled before the first check, and most between two checks; the interval doubles until then.
_FIRST_CHECK, _INTERVAL = 64, 1 << 14


class ImportedTurns:
    """Imported turns of other runs in a log, dropped if they do not match the policy.

    Imported turns draft like own turns, and count as older than all own turns: own turns of a state replace them first
    (``rollouts_per_state``). The engine verifies their drafts like all drafts, so imported turns change no token.

    Imported turns are also dropped for low acceptance. A turn's votes count how often the drafter asked it for the next
    token, and how often that token was right. A turn that is right less than half as often as own turns is dropped.
    The estimate for a turn with few votes relies on all imported turns together. Imports that do not match the policy
    are therefore dropped after some hundred tokens, together with the weights learnt from their drafts. A turn that is
    written again in the log counts as an own turn.
    """

    def __init__(self, turns: Sequence[LogEntry] = ()) -> None:
        self.turns = list(turns)  #: turns left after the last check
        self.count = len(self.turns)  #: number of imported turns
        self.dropped = 0  #: turns dropped for low acceptance
        self._dropped_votes: NDArray[np.float64] = np.zeros(2)  # votes of the dropped turns: asked, right
        self._sampled, self._next = 0, _FIRST_CHECK

    def due(self, tokens: int) -> bool:
        """Count sampled tokens; return whether it is time to check the imported turns."""
        self._sampled += tokens
        if not self.turns or self._sampled < self._next:
            return False
        self._next = self._sampled + min(self._sampled, _INTERVAL)
        return True

    def take_wrong(self, store: TurnStore) -> list[LogEntry]:
        """Return the turns to drop, and forget them here."""
        self.turns = [turn for turn in self.turns if store.holds(turn)]
        slots = np.array([turn.slot for turn in self.turns], np.int64)
        # Two columns: how often a turn was asked for its next token, and how often that was right.
        votes = store.log.votes
        turn_votes = votes[slots].astype(np.float64)
        imported, own_votes = self._dropped_votes + turn_votes.sum(0), votes[1:].sum(0) - turn_votes.sum(0)
        if own_votes[0] < _MIN_VOTES:
            return []
        expected = own_votes[1] / own_votes[0]
        # Shrink the rate of all imported turns towards the own rate, and each turn's rate towards the imported rate.
        imported_rate = (imported[1] + _MIN_VOTES * expected) / (imported[0] + _MIN_VOTES)
        share = (turn_votes[:, 1] + _PRIOR_VOTES * imported_rate) / (turn_votes[:, 0] + _PRIOR_VOTES)
        wrong = share < _MIN_RATIO * expected
        self._dropped_votes += turn_votes[wrong].sum(0)
        if own_votes[0] > _MAX_VOTES:
            votes //= 2
            self._dropped_votes *= 0.5
        checked = list(zip(self.turns, wrong.tolist(), strict=True))
        dropped, self.turns = [turn for turn, drop in checked if drop], [turn for turn, drop in checked if not drop]
        self.dropped += len(dropped)
        return dropped
