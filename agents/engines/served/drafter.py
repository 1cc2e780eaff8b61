"""``ServedDrafter``: the part of turntree's drafter in vLLM and SGLang that does not depend on how an engine verifies.

It has the store, the live turns, the counters, and what a request says of its turn.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from turntree.agents.engines.drafting.chain_rows import ChainRows, ChainTurn
from turntree.agents.engines.drafting.session import DraftCounts, DraftingSession
from turntree.agents.engines.request_wire import given_of, reverified_most, turn_draft_of, turn_state
from turntree.agents.engines.reverified import ended_turn
from turntree.spec_tree import SpecForest

_ANY = 1 << 31
"""Size of a vocabulary that is not known."""


class ServedDrafter:
    """A store of drafts in an engine's process."""

    def __init__(self, forest: SpecForest, longest: int) -> None:
        """Draft from a store, at most ``longest`` tokens of one request."""
        self.forest = forest
        self._session = DraftingSession(forest=forest)
        self._chains = ChainRows(forest, longest)

    @property
    def counts(self) -> DraftCounts:
        """Counters so far."""
        return self._session.counts

    def _asked(self, entries: Mapping[str, Any] | None, tokens: Sequence[int], most: int, **limits: Any) -> ChainTurn:
        """The turn that a request asks for.

        Args:
            entries: Those of ``request_wire``.
            tokens: Token ids of its prompt, at whose end the turn's first ones may be given.
            most: Most tokens that it samples.
            limits: Others of ``ChainTurn``.
        """
        prompt = list(tokens[: len(tokens) - given_of(entries)])
        return ChainTurn(
            state=turn_state(entries, prompt),
            prompt=prompt,
            most=given_of(entries) + most,
            turn_draft=turn_draft_of(entries, self.forest.config.vocabulary or _ANY),
            **limits,
        )

    def _insert(self, entries: Mapping[str, Any] | None, tokens: Sequence[int], turn: Sequence[int]) -> None:
        """Give the store the turn of a request that ended before it was drafted for."""
        self.forest.insert(turn_state(entries, tokens[: len(tokens) - given_of(entries)]), turn)


def reverified_turn(
    entries: Mapping[str, Any] | None, tokens: Sequence[int], drawn: Sequence[int], stops: Container[int]
) -> list[int]:
    """The turn of a verified again request if its pass ended it, else nothing: another request goes on.

    Args:
        tokens: Token ids of its prompt, the draft at its end.
        drawn: Those drawn at the draft's positions, and behind it where one was.
    """
    return ended_turn(tokens[len(tokens) - given_of(entries) :], drawn, stops, reverified_most(entries))
