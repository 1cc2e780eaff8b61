"""The turns of other runs that a store begins with, and how they are forgotten again.

They draft as the store's own turns do, and are older than all of these: the own turns of a state take their places
(``rollouts_per_state``). What they draft is verified as any draft is, so they change no token.

They also leave by their own acceptance. Of every turn it is counted how often what stands there was sampled next; one
that is right less than half as often as the turns sampled here is dropped. One that was asked little is judged by the
others of the past: a past that has nothing in common with this policy is forgotten at once, after some hundred tokens,
and what the store learnt of its drafts with it. A turn that was written again in the log counts as sampled here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.store.turn_store import LogEntry, TurnStore

_LEAST = 0.5
"""Share of the own turns' right votes below which a turn is dropped."""
_ASKED = 64
"""Votes of own turns before anything is judged, and votes as good as theirs that the past begins with."""
_OTHERS = 16
"""Votes as good as the past's that each of its turns begins with."""
_MEMORY = 1 << 16
"""Votes of own turns after which all votes count half: the policy changes."""
_SOON, _OFTEN = 64, 1 << 14
"""Tokens sampled before the first judgement, and between two later on; until then it is twice as many each time."""


class ImportedTurns:
    """The turns of other runs in a log."""

    def __init__(self, turns: Sequence[LogEntry] = ()) -> None:
        self.turns = list(turns)
        """Those that are left, as of the last judgement."""
        self.given = len(self.turns)
        """How many they were."""
        self.forgotten = 0
        """Turns dropped for their acceptance."""
        self._gone: NDArray[np.float64] = np.zeros(2)
        self._sampled, self._next = 0, _SOON

    def due(self, tokens: int) -> bool:
        """Count sampled tokens; whether the past is to be judged now."""
        self._sampled += tokens
        if not self.turns or self._sampled < self._next:
            return False
        self._next = self._sampled + min(self._sampled, _OFTEN)
        return True

    def judge(self, store: TurnStore) -> list[LogEntry]:
        """The turns to be dropped, which are then none of the past's any more."""
        self.turns = [turn for turn in self.turns if store.holds(turn)]
        slots = np.array([turn.slot for turn in self.turns], np.int64)
        votes = store.log.votes
        mine = votes[slots].astype(np.float64)
        past, own = self._gone + mine.sum(0), votes[1:].sum(0) - mine.sum(0)
        if own[0] < _ASKED:
            return []
        expected = own[1] / own[0]
        imported_rate = (past[1] + _ASKED * expected) / (past[0] + _ASKED)
        share = (mine[:, 1] + _OTHERS * imported_rate) / (mine[:, 0] + _OTHERS)
        wrong = share < _LEAST * expected
        self._gone += mine[wrong].sum(0)
        if own[0] > _MEMORY:
            votes //= 2
            self._gone *= 0.5
        judged = list(zip(self.turns, wrong.tolist(), strict=True))
        dropped, self.turns = [turn for turn, drop in judged if drop], [turn for turn, drop in judged if not drop]
        self.forgotten += len(dropped)
        return dropped
