from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import TurnRequest
from turntree.agents.turn_drafts.source import Drawn, Source, TurnDraft
from turntree.spec_tree.rules.level import Level


class LastValidation(Source):
    """The turns of the last validation, as drafts of the next validation with the same noise.

    A turn takes one pass as long as weight updates change none of its tokens. The result always equals plain decoding
    with the turn's seed. Only turns of validations (``reuse=False``) are stored and drafted. The policy is never
    trained on these turns, so the reuse adds no bias.

    Args:
        max_tokens: Most tokens held.
    """

    def __init__(self, *, max_tokens: int) -> None:
        self._free_tokens = max_tokens  # tokens that still fit
        self._last: dict[int, NDArray[np.int32]] = {}  # tokens of each turn, by seed

    def repeats(self, request: TurnRequest) -> bool:
        return not request.reuse

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        seed = request.sampling.seed
        last = None if request.reuse or seed is None else self._last.get(seed)
        if last is None:
            return None
        return TurnDraft(source=self, tokens=last.tolist(), level=Level.B, seed=seed)

    def record(self, drawn: Drawn) -> None:
        seed, tokens = drawn.seed, drawn.completion.token_ids
        if drawn.request.reuse or seed is None or drawn.aborted:
            return
        # When full, keep the stored turns: every validation requests all turns in the same order, so dropping the
        # oldest turn would drop each turn just before its request.
        self._free_tokens += len(self._last.pop(seed, ()))
        if len(tokens) <= self._free_tokens:
            self._free_tokens -= len(tokens)
            self._last[seed] = np.asarray(tokens, np.int32)
