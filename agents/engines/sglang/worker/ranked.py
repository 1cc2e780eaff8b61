"""Tensor-parallel ranks: the first one drafts, and the others verify what it tells them.

All ranks run the same passes over the same requests, and must verify the same nodes at the same width. The first rank
alone has a store, a clock and what both taught it; before each pass it broadcasts the trees, whose width is the pass's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from turntree.agents.engines.drafting.session import DraftCounts
from turntree.agents.engines.sglang.worker.drafter import StepCounts, TreeDrafter
from turntree.agents.engines.sglang.worker.rows import TreeRows
from turntree.agents.engines.sglang.worker.served_request import Served


class Ranks(Protocol):
    """A group of ranks that reach this point together."""

    rank_in_group: int

    def broadcast_object(self, obj: Any | None = None, src: int = 0) -> Any:
        """The object of rank ``src``, on every rank."""


class LeadingDrafter(TreeDrafter):
    """The first rank's drafter."""

    def __init__(self, ranks: Ranks, *args: Any, **kwargs: Any) -> None:
        """Draft for a group of ranks, which come to ``propose`` together; other arguments are ``TreeDrafter``'s."""
        super().__init__(*args, **kwargs)
        self._ranks = ranks

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """As ``TreeDrafter.propose``, for every rank."""
        rows = super().propose(requests)
        self._ranks.broadcast_object((rows, self.drafted()))
        return rows


class FollowingDrafter:
    """Another rank's drafter: it has no store, and receives what the first rank sends of a pass."""

    forest = None

    def __init__(self, ranks: Ranks, widths: tuple[int, ...]) -> None:
        """Follow the first rank of a group, which chooses among the same widths."""
        self._ranks = ranks
        self.widths = widths
        self.counts = DraftCounts()
        self._drafted: list[int] = []

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """The first rank's trees for these requests."""
        rows: TreeRows
        rows, self._drafted = self._ranks.broadcast_object()
        return rows

    def drafted(self) -> list[int]:
        """As the first rank's."""
        return self._drafted

    def settle(self) -> StepCounts:
        """Nothing is learnt here; the first rank alone answers requests, with its own counts."""
        return StepCounts(drafted=self._drafted, accepted=[0] * len(self._drafted))

    def prompts(self, requests: Sequence[Served]) -> None:
        """The first rank learns of turns that end in a pass over prompts."""

    def idle(self) -> None:
        """Nothing is kept here."""
