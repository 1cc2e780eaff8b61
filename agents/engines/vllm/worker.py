"""Methods that vLLM mixes into its workers for turntree (``worker_extension_cls``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.drafting.remote_store import carry_out
from turntree.agents.engines.vllm import compat

if TYPE_CHECKING:
    from turntree.agents.engines.vllm.drafter import ForestDrafter


class WorkerExtension:
    """Methods of a worker, called by name on every rank."""

    model_runner: Any
    vllm_config: Any

    def turntree_draft_stats(self, request_ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Verify steps, drafted and accepted tokens by request; finished ones are then dropped here.

        Args:
            request_ids: The callers' ids. Those that the drafter does not know are left out.
        """
        drafter = self._drafter
        found = {} if drafter is None else {request_id: drafter.take_stats(request_id) for request_id in request_ids}
        return {request_id: counters for request_id, counters in found.items() if counters is not None}

    def turntree_drafter_stats(self) -> dict[str, float]:
        """Counters of turntree's drafter since the engine started; empty with another drafter or none, and on workers
        that do not draft."""
        drafter = self._drafter
        return {} if drafter is None else dict(drafter.stats())

    def turntree_draws_by_seed(self) -> bool:
        """Whether seeded requests draw by ``seeded_draws``."""
        from turntree.agents.engines.vllm.drawing.seeded_draws import installed

        return installed(self.model_runner)

    def turntree_store(self, method: str, *args: Any) -> None:
        """Call a method of the store of drafts, if there is one; see ``carry_out``."""
        if self._drafter is not None:
            carry_out(self._drafter.forest, method, args, first_rank=compat.is_first_engine(self.vllm_config))

    @property
    def _drafter(self) -> ForestDrafter | None:
        """turntree's drafter, if this worker drafts with it."""
        drafter = getattr(self.model_runner, "drafter", None)
        return drafter if getattr(drafter, "leads", False) else None
