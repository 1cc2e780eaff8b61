"""What the pipeline asks a source of drafts, and what it reports back.

A draft never changes the distribution of a turn. It decides how many passes the turn
takes, and which exactness level its tokens may claim.
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
    """Whose draft it is."""
    tokens: Sequence[int]
    """Token ids, shape (tokens,)."""
    level: Level
    """Exactness of the turn's tokens if it begins with this draft; with a ``rule``, of those kept and redrawn."""
    seed: int | None = None
    """Seed of the noise that drew the tokens: the turn is drawn with it, the tokens being its draft."""
    stored: StoredTurn | None = None
    """The stored turn that the tokens begin, with the distribution that drew it."""
    rule: RatioRule | None = None
    """Keeps tokens by the ratio of new to old probability, instead of a draw with ``seed``."""
    most: int | None = None
    """Most tokens that the turn may have; ``None`` is the request's own bound."""
    later: Sequence[Sequence[DraftedRequest]] | None = None
    """The episode's later turns if this draft is right, each with the drafts that its request may begin with;
    ``None`` where none are foreseen."""


class DraftedRequest(NamedTuple):
    """A requested turn and a draft of it."""

    request: TurnRequest
    turn_draft: TurnDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A finished turn, as its sources learn of it."""

    request: TurnRequest
    """As the sources wanted it (``Source.wanted``)."""
    turn_draft: TurnDraft | None
    """What it began with."""
    completion: Completion
    seed: int | None
    """The seed of all its noise; ``None`` if there was no single one."""
    kept: int = 0
    """Tokens of the draft that the turn begins with."""
    wider: int = 0
    """Passes that asked for more of the policy's distribution after a rejection."""
    begun: int = 0
    """Passes over later turns that began with this one."""
    early: bool = False
    """Whether its own pass had begun before it was requested."""

    @property
    def aborted(self) -> bool:
        """Whether it is no whole turn."""
        return self.completion.finish_reason is FinishReason.ABORT

    def from_source(self, source: Source) -> TurnDraft | None:
        """The draft, if it is this source's."""
        return self.turn_draft if self.turn_draft is not None and self.turn_draft.source is source else None


class Source:
    """A source that drafts nothing; others derive from it, and override what they need."""

    def wanted(self, request: TurnRequest) -> TurnRequest:
        """A turn is requested: the request with what this source needs of it, such as its seed and its records."""
        return request

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        """A draft of a turn, or ``None``: the next source is asked."""
        return None

    def level(self, seed: int | None) -> Level | None:
        """Exactness of a turn that is drawn with the noise of ``seed`` if that has been used, else ``None``."""
        return None

    def repeats(self, request: TurnRequest) -> bool:
        """Whether this turn's noise is used at many steps: its drafts then tell nothing about exactness."""
        return False

    async def precompute(self, request: TurnRequest) -> Completion | None:
        """Sample a turn for the later step ``request.precomputed_for``; ``None`` where the source does not."""
        return None

    def record(self, drawn: Drawn) -> None:
        """A turn is finished."""

    def close_step(self, step: int, *, trained: bool) -> None:
        """The policy was updated, ``step`` times now.

        Args:
            trained: Whether it may have been trained on the turns until now.
        """

    def counters(self) -> Mapping[str, float]:
        """Counters since creation, by their names in ``engine.jsonl``."""
        return {}
