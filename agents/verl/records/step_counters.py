"""A server's counters, z-scores and weights, recorded at the end of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.records.recording import RunFolder, append_line, save_weights

if TYPE_CHECKING:
    from turntree.agents.turn_drafts.pipeline import DraftedTurns
    from turntree.spec_tree.sharing.turn_sharing import SwapCounts


class StepCounters:
    def __init__(self, settings: RunSettings, replica_rank: int, turns: DraftedTurns) -> None:
        # Only the first replica writes: all replicas have the same weights.
        self._folder = RunFolder(Path(settings.run_dir)) if settings.run_dir and replica_rank == 0 else None
        self._save_every = settings.save_policy_every if self._folder else 0
        self._turns = turns
        self._last_totals: dict[str, float] | None = None
        self._last_read: dict[str, float] = {}
        self._weights: dict[str, Any] = {}

    def collect(self, named: Mapping[str, Any]) -> None:
        if self._save_every:
            self._weights.update(named)

    def close_step(self, global_steps: int, counters: Mapping[str, float], shared: SwapCounts | None = None) -> None:
        """Close a step after weight update ``global_steps``; warn if an exactness z-score is far from 0."""
        # ``counters`` and ``shared`` are totals since the engine's start.
        scores = self._turns.close_step(global_steps)
        totals = self._totals(counters, shared)
        if self._folder is None:
            return
        # If the counters did not grow, the engine has just been restarted, and the differences mean nothing.
        if self._last_totals is not None and totals["verify_steps"] > self._last_totals["verify_steps"]:
            row = {name: total - self._last_totals.get(name, 0) for name, total in totals.items()}
            row["tokens_per_forward_pass"] = row["tokens"] / row["verify_steps"]
            append_line(self._folder.engine, {"step": global_steps, **row, **scores})
        self._last_totals = totals
        if self._save_every and global_steps % self._save_every == 0:
            save_weights(self._folder.weights(global_steps + 1), self._weights.items())
        self._weights = {}

    def read(self, counters: Mapping[str, float], shared: SwapCounts | None = None) -> dict[str, float]:
        """Return the counters' growth since the last call, and the z-scores since the step began."""
        totals = self._totals(counters, shared)
        row = {name: total - self._last_read.get(name, 0) for name, total in totals.items()}
        self._last_read = totals
        return row | self._turns.monitors.scores()

    def _totals(self, counters: Mapping[str, float], shared: SwapCounts | None) -> dict[str, float]:
        totals = dict(counters) | self._turns.counters()
        if shared is not None:
            totals |= {f"sharing_{name}": value for name, value in asdict(shared).items()}
        return totals
