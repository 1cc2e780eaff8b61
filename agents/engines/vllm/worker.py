"""Methods that vLLM mixes into its workers for turntree (``worker_extension_cls``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.state_wire import from_wire

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

    def turntree_insert(self, states: Sequence[dict[str, str]], turns: Sequence[Sequence[int]]) -> None:
        """Add finished turns to the store of drafts, if there is one.

        Args:
            states: Of ``state_wire.to_wire``, shape (turns,).
            turns: Token ids, shape (tokens,) each.
        """
        forest = self._forest
        if forest is not None:
            forest.insert_all([from_wire(state) for state in states], turns)

    def turntree_save(self, path: str) -> None:
        """Write the store of drafts into a file. All ranks hold the same turns: the first one writes."""
        forest = self._forest
        if forest is not None and self.rank == 0:
            forest.save(path)

    def turntree_restore(self, path: str) -> None:
        """Replace the store of drafts by that of a file."""
        forest = self._forest
        if forest is not None:
            forest.restore(path)

    @property
    def _forest(self) -> SpecForest | None:
        return getattr(getattr(self.model_runner, "drafter", None), "forest", None)
