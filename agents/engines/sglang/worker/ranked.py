"""Tensor-parallel ranks: the first rank drafts and broadcasts its trees, and all ranks verify them.

All ranks run the same passes over the same requests, and must verify the same draft-tree nodes at the same width
(tokens per request). The width depends on measured times, which differ between ranks. Therefore only the first rank has
a draft store and a clock: it drafts and chooses the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from turntree.agents.engines.drafting.session import DraftCounts
from turntree.agents.engines.sglang.worker.drafter import Served, StepCounts, TreeDrafter
from turntree.agents.engines.sglang.worker.rows import TreeRows


class Ranks(Protocol):
    """A group of ranks that reach each broadcast together."""

    rank_in_group: int

    def broadcast_object(self, obj: Any | None = None, src: int = 0) -> Any:
        """Return the object of rank ``src`` on every rank."""


class LeadingDrafter(TreeDrafter):
    """The first rank's drafter; all ranks of the group call ``propose`` together."""

    def __init__(self, ranks: Ranks, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ranks = ranks

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        rows = super().propose(requests)
        self._ranks.broadcast_object((rows, self.drafted()))
        return rows


class FollowingDrafter:
    """The drafter of every other rank, without a draft store: it receives the first rank's trees."""

    forest = None

    def __init__(self, ranks: Ranks, widths: tuple[int, ...]) -> None:
        self._ranks = ranks
        self.widths = widths
        self.counts = DraftCounts()
        self._drafted: list[int] = []

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        rows: TreeRows
        rows, self._drafted = self._ranks.broadcast_object()
        return rows

    def drafted(self) -> list[int]:
        return self._drafted

    def settle(self) -> StepCounts:
        # Only SGLang's first rank answers requests, with its own counts.
        return StepCounts(drafted=self._drafted, accepted=[0] * len(self._drafted))

    def prompts(self, requests: Sequence[Served]) -> None:
        """Do nothing: only the first rank stores turns."""

    def idle(self) -> None:
        """Do nothing: this rank keeps no turns."""
