"""``ServedDrafter``: the part of turntree's drafter in vLLM and SGLang that does not depend on how an engine verifies.

It has the store, its exchange with other engines' stores, the counters, and what a request says of its turn.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from turntree.agents.engines.drafting.session import DraftCounts, DraftingSession
from turntree.agents.engines.judged import ended_turn
from turntree.agents.engines.request_wire import given_of, guess_of, judged_most, turn_state
from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.exchange.exchange import SharedTurns
from turntree.spec_tree.exchange.folder_exchange import FolderExchange

_ANY = 1 << 31
"""Size of a vocabulary that is not known."""


class AskedTurn(NamedTuple):
    """A turn as its request has it."""

    state: DialogueState
    """By which its drafts are keyed."""
    prompt: list[int]
    """Token ids of the prompt."""
    given: list[int]
    """The turn's first tokens, or a guess of the turn to be judged, which stand at the end of the request's prompt."""
    guess: list[int]
    """The caller's guess of the whole turn."""

    @classmethod
    def of(cls, entries: Mapping[str, Any] | None, tokens: Sequence[int], vocabulary: int = _ANY) -> AskedTurn:
        """Read a request.

        Args:
            entries: Those of ``request_wire``.
            tokens: Token ids of its prompt.
            vocabulary: Tokens that the policy knows, of which its guess is taken.
        """
        before = len(tokens) - given_of(entries)
        prompt, given = list(tokens[:before]), list(tokens[before:])
        return cls(turn_state(entries, prompt), prompt, given, guess_of(entries, vocabulary))


class ServedDrafter:
    """A store of drafts in an engine's process."""

    def __init__(self, forest: SpecForest, *, shared: SharedTurns | None = None) -> None:
        """Draft from a store."""
        self.forest = forest
        self._shared = shared
        self._session = DraftingSession(forest=forest)
        self._vocabulary = forest.config.vocabulary or _ANY

    @property
    def counts(self) -> DraftCounts:
        """Counters so far."""
        return self._session.counts

    def _insert(self, state: DialogueState, turn: Sequence[int]) -> None:
        """Give the store a turn that ended before it was drafted for."""
        self.forest.insert(state, turn)
        self._note(state, turn)

    def _note(self, state: DialogueState, turn: Sequence[int]) -> None:
        """Pass a turn of the store on to other engines' stores."""
        if self._shared is not None:
            self._shared.note(state, turn)

    def _swap(self) -> None:
        """Exchange turns with other engines' stores; no step waits for it."""
        if self._shared is not None:
            self._shared.swap_aside()


def judged_turn(
    entries: Mapping[str, Any] | None, tokens: Sequence[int], drawn: Sequence[int], stops: Container[int]
) -> list[int]:
    """The turn of a judged request if its pass ended it, else nothing: another request goes on.

    Args:
        tokens: Token ids of its prompt, the guess at its end.
        drawn: Those drawn at the guess's positions, and behind it where one was.
    """
    return ended_turn(tokens[len(tokens) - given_of(entries) :], drawn, stops, judged_most(entries))


def shared_turns(forest: SpecForest) -> SharedTurns | None:
    """The exchange of a store's turns that the environment names."""
    exchange, config = FolderExchange.from_environment(), forest.config
    if exchange is None:
        return None
    return SharedTurns(forest, exchange, vocabulary=config.vocabulary, tokenizer=config.tokenizer)
