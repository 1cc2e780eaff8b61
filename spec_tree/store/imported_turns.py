from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.store.turn_store import LogEntry, TurnStore

_LEAST = 0.5  #: a turn is dropped if its fraction of right votes is below this factor times that of own turns
_ASKED = 64  #: votes of own turns before anything is dropped, and prior votes at their rate for all imported turns
_OTHERS = 16  #: prior votes of each imported turn, at the rate of all imported turns
_MEMORY = 1 << 16  #: votes of own turns after which all votes are halved, since the policy changes
#: Tokens sampled before the first check, and most between two checks; the interval doubles until then.
_FIRST_CHECK, _INTERVAL = 64, 1 << 14


class ImportedTurns:
    """The turns of other runs in a log, and which of them to drop.

    Imported turns draft as own turns do, and count as older than all of them: own turns of a state replace them first
    (``rollouts_per_state``). Their drafts are verified as any draft, so they change no token.

    Imported turns are also dropped for low acceptance. A turn's votes count how often the token after the current
    position was asked for and was right. A turn that is right less than half as often as own turns is dropped. Turns
    with few votes are estimated by all imported turns together, so imports that do not match the policy are dropped
    after some hundred tokens, with what the forest learnt from their drafts. A turn that is written again in the log
    counts as an own turn.
    """

    def __init__(self, turns: Sequence[LogEntry] = ()) -> None:
        self.turns = list(turns)  #: turns left after the last check
        self.count = len(self.turns)  #: number of imported turns
        self.dropped = 0  #: turns dropped for low acceptance
        self._gone: NDArray[np.float64] = np.zeros(2)  # votes of the dropped turns: asked, right
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
        mine = votes[slots].astype(np.float64)
        imported, own = self._gone + mine.sum(0), votes[1:].sum(0) - mine.sum(0)
        if own[0] < _ASKED:
            return []
        expected = own[1] / own[0]
        # Shrink the rate of all imported turns towards that of own turns, and each turn's towards all imported ones.
        imported_rate = (imported[1] + _ASKED * expected) / (imported[0] + _ASKED)
        share = (mine[:, 1] + _OTHERS * imported_rate) / (mine[:, 0] + _OTHERS)
        wrong = share < _LEAST * expected
        self._gone += mine[wrong].sum(0)
        if own[0] > _MEMORY:
            votes //= 2
            self._gone *= 0.5
        checked = list(zip(self.turns, wrong.tolist(), strict=True))
        dropped, self.turns = [turn for turn, drop in checked if drop], [turn for turn, drop in checked if not drop]
        self.dropped += len(dropped)
        return dropped
