from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from turntree.agents.engines.drafting.chain_rows import ChainRows, ChainTurn
from turntree.agents.engines.drafting.session import DraftCounts, DraftingSession
from turntree.agents.engines.request_wire import given_of, reverified_most, turn_draft_of, turn_state
from turntree.agents.engines.reverified import ended_turn
from turntree.spec_tree import SpecForest

_ANY = 1 << 31  #: vocabulary size if unknown


class ServedDrafter:
    """What the drafters in vLLM's and SGLang's processes share: all but how the engine verifies drafts."""

    def __init__(self, forest: SpecForest, longest: int) -> None:
        self.forest = forest
        self._session = DraftingSession(forest=forest)
        self._chains = ChainRows(forest, longest)

    @property
    def counts(self) -> DraftCounts:
        return self._session.counts

    def _asked(self, entries: Mapping[str, Any] | None, tokens: Sequence[int], most: int, **limits: Any) -> ChainTurn:
        # The turn to draft for. Its first tokens may end the request's prompt (``request_wire.GIVEN``).
        prompt = list(tokens[: len(tokens) - given_of(entries)])
        return ChainTurn(
            state=turn_state(entries, prompt),
            prompt=prompt,
            most=given_of(entries) + most,
            turn_draft=turn_draft_of(entries, self.forest.config.vocabulary or _ANY),
            **limits,
        )

    def _insert(self, entries: Mapping[str, Any] | None, tokens: Sequence[int], turn: Sequence[int]) -> None:
        # for a request that ended before the drafter saw it
        self.forest.insert(turn_state(entries, tokens[: len(tokens) - given_of(entries)]), turn)


def reverified_turn(
    entries: Mapping[str, Any] | None, tokens: Sequence[int], drawn: Sequence[int], stops: Container[int]
) -> list[int]:
    """Return the turn of a re-verified request if its pass ended it, else an empty list.

    The prompt's ``tokens`` end with the draft; ``drawn`` are the tokens sampled at its positions and possibly one more.
    """
    return ended_turn(tokens[len(tokens) - given_of(entries) :], drawn, stops, reverified_most(entries))
