"""Methods that vLLM mixes into its workers for turntree (``worker_extension_cls``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.drafting.remote_store import carry_out

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest


class WorkerExtension:
    """Methods of a worker, called by name on every rank."""

    model_runner: Any
    rank: int

    def turntree_draft_stats(self, request_ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Verify steps, drafted and accepted tokens by request; finished ones are then dropped here.

        Args:
            request_ids: The callers' ids. Those that the drafter does not know are left out.
        """
        take = getattr(getattr(self.model_runner, "drafter", None), "take_stats", None)
        if take is None:
            return {}
        found = {request_id: take(request_id) for request_id in request_ids}
        return {request_id: counters for request_id, counters in found.items() if counters is not None}

    def turntree_drafter_stats(self) -> dict[str, float]:
        """Counters of turntree's drafter since the engine started; empty with another drafter or none."""
        stats = getattr(getattr(self.model_runner, "drafter", None), "stats", None)
        return {} if stats is None else dict(stats())

    def turntree_draws_by_seed(self) -> bool:
        """Whether seeded requests draw by ``seeded_draws``."""
        from turntree.agents.engines.vllm.drawing.seeded_draws import installed

        return installed(self.model_runner)

    def turntree_store(self, method: str, *args: Any) -> None:
        """Call a method of the store of drafts, if there is one; see ``carry_out``."""
        if self._forest is not None:
            carry_out(self._forest, method, args, first_rank=self.rank == 0)

    @property
    def _forest(self) -> SpecForest | None:
        return getattr(getattr(self.model_runner, "drafter", None), "forest", None)
