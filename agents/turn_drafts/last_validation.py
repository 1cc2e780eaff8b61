"""Validations that replay one another: the same noise each time, and each turn begun with the last one's tokens.

The last turn that a seed sampled is the draft of the next one with that seed, so
that a turn takes one pass until the update changed a token. The turn is what plain
decoding with its seed samples.

Invariant: what is held here comes from validations alone (``reuse=False``) and goes into
validations alone. The policy is never trained on it, so the turns are unbiased.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import TurnRequest
from turntree.agents.turn_drafts.source import Drawn, Source, TurnDraft
from turntree.spec_tree.rules.level import Level


class LastValidation(Source):
    """The turns of the last validation; see the module's docstring.

    Args:
        max_tokens: Most tokens held.
    """

    def __init__(self, *, max_tokens: int) -> None:
        self._room = max_tokens
        self._last: dict[int, NDArray[np.int32]] = {}

    def repeats(self, request: TurnRequest) -> bool:
        """See ``Source``."""
        return not request.reuse

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        """The last turn with the request's seed; none without a seed."""
        seed = request.sampling.seed
        last = None if request.reuse or seed is None else self._last.get(seed)
        if last is None:
            return None
        return TurnDraft(source=self, tokens=last.tolist(), level=Level.B, seed=seed)

    def record(self, drawn: Drawn) -> None:
        """See ``Source``."""
        seed, tokens = drawn.seed, drawn.completion.token_ids
        if drawn.request.reuse or seed is None or drawn.aborted:
            return
        # A full store keeps what it has: every validation asks for all turns in turn, so that dropping the oldest
        # ones would drop each just before it is asked for.
        self._room += len(self._last.pop(seed, ()))
        if len(tokens) <= self._room:
            self._room -= len(tokens)
            self._last[seed] = np.asarray(tokens, np.int32)
