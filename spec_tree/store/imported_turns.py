from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.store.turn_store import LogEntry, TurnStore

_MIN_RATIO = 0.5  #: drop a turn if its fraction of right votes is below this factor times the fraction of own turns
_MIN_VOTES = 64  #: minimum votes of own turns before any turn is dropped; also prior votes of all imported turns
_PRIOR_VOTES = 16  #: prior votes of each imported turn, at the rate of all imported turns
_MAX_VOTES = 1 << 16  #: votes of own turns after which all votes are halved, since the policy changes
#: tokens sampled before the first check, and maximum between two checks; the interval doubles up to the maximum
_FIRST_CHECK, _INTERVAL = 64, 1 << 14


class ImportedTurns:
    """Turns imported from other runs (warm start), dropped if they do not match the policy.

    Drafts are copied from imported turns as from own turns (those of this run). Imported turns count as older than all
    own turns, so own turns of a state replace them first (``rollouts_per_state``). The engine verifies all drafts, so
    imported turns change no token.

    Imported turns are also dropped for low acceptance. A vote is a prediction of the next token, copied from a turn.
    A turn whose votes are right less than half as often as votes of own turns is dropped. The estimate for a turn with
    few votes relies on all imported turns together. So imports that do not match the policy are dropped after some
    hundred tokens, together with the weights learnt from their drafts. A turn that is written again in the log counts
    as own.
    """

    def __init__(self, turns: Sequence[LogEntry] = ()) -> None:
        self.turns = list(turns)  #: turns left after the last check
        self.count = len(self.turns)  #: number of imported turns
        self.dropped = 0  #: turns dropped for low acceptance
        self._dropped_votes: NDArray[np.float64] = np.zeros(2)  # of the dropped turns: votes, right votes
        self._sampled, self._next = 0, _FIRST_CHECK

    def due(self, tokens: int) -> bool:
        """Count sampled tokens; return whether it is time to check the imported turns."""
        self._sampled += tokens
        if not self.turns or self._sampled < self._next:
            return False
        self._next = self._sampled + min(self._sampled, _INTERVAL)
        return True

    def take_wrong(self, store: TurnStore) -> list[LogEntry]:
        """Return the turns to drop, and remove them from ``turns``."""
        self.turns = [turn for turn in self.turns if store.holds(turn)]
        slots = np.array([turn.slot for turn in self.turns], np.int64)
        # Two columns: votes of each turn, and right votes.
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
