"""The interface of the sources of turn-level drafts.

A turn-level draft proposes all tokens of a turn. With an exact rule, it never changes the turn's distribution. It
decides how many passes the turn takes, and which exactness level (A to D) its tokens may claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.turn_drafts.turn_verification import RatioRule
from turntree.spec_tree.rules.ledger import StoredTurn
from turntree.spec_tree.rules.level import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDraft:
    """Tokens that a turn may begin with."""

    source: Source
    tokens: Sequence[int]  #: token ids, shape (tokens,)
    #: Exactness level of the turn's tokens with this draft; with a ``rule``, of the kept and redrawn tokens.
    level: Level
    seed: int | None = None  #: seed of the noise that drew the tokens; the turn is drawn with this seed too
    stored: StoredTurn | None = None  #: the stored turn that begins with the tokens
    #: rule that keeps tokens by the ratio of new to old probability; ``None`` draws the turn again with ``seed``
    rule: RatioRule | None = None
    most: int | None = None  #: most tokens of the turn; ``None`` is the request's own limit
    #: Later turns of the episode that are predicted if this draft is right, nearest first; for each turn its possible
    #: drafts. ``None`` if nothing is predicted.
    later: Sequence[Sequence[DraftedRequest]] | None = None


class DraftedRequest(NamedTuple):
    """The request for a turn, and a draft of the turn."""

    request: TurnRequest
    turn_draft: TurnDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A finished turn, as reported to the sources."""

    request: TurnRequest  #: as modified by ``Source.wanted``
    turn_draft: TurnDraft | None  #: the draft that was used
    completion: Completion
    seed: int | None  #: the seed of all the turn's noise; ``None`` for several seeds
    kept: int = 0  #: number of the draft's first tokens that the turn begins with
    wider: int = 0  #: passes that asked for more of the distribution after a rejection
    begun: int = 0  #: prefetched passes over later turns that were started with this turn
    early: bool = False  #: whether the turn used a prefetched pass, started before the turn was requested

    @property
    def aborted(self) -> bool:
        return self.completion.finish_reason is FinishReason.ABORT

    def from_source(self, source: Source) -> TurnDraft | None:
        return self.turn_draft if self.turn_draft is not None and self.turn_draft.source is source else None


class Source:
    """A source that drafts nothing; subclasses override what they need."""

    def wanted(self, request: TurnRequest) -> TurnRequest:
        """Return the request with the seed and records that this source needs."""
        return request

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        """Return a draft of a turn; with ``None``, the next source is asked."""
        return None

    def level(self, seed: int | None) -> Level | None:
        """Return the exactness level of a turn drawn with the noise of ``seed``, if that noise has been used."""
        return None

    def repeats(self, request: TurnRequest) -> bool:
        """Return whether this turn's noise is used in many steps; the monitors then ignore its drafts."""
        return False

    async def precompute(self, request: TurnRequest) -> Completion | None:
        """Sample a turn for the later step ``request.precomputed_for``; ``None`` if the source cannot."""
        return None

    def record(self, drawn: Drawn) -> None:
        """Learn from a finished turn."""

    def close_step(self, step: int, *, trained: bool) -> None:
        """Record the ``step``-th weight update; ``trained``: the policy may have been trained on the turns so far."""

    def counters(self) -> Mapping[str, float]:
        """Return the counters since creation, by their names in ``engine.jsonl``."""
        return {}
