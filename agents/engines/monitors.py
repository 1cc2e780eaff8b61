"""Exactness monitors: z-scores that test during a run whether rollouts follow the policy's distribution.

Engines return the sums of ``spec_tree.rules.monitor`` with every turn. The turns of a training step give two
z-scores, for acceptance and entropy. Both are near N(0, 1) if the rollouts are exact.

Turns that replay tokens that the policy was trained on (level C) have z-scores of their own. The policy depends on
these tokens, so the z-scores may drift from 0 without a fault; a fault shows in them as well. Turns with lenience
(level D) are biased by design and left out. A turn that uses a seed again within two steps (in a retried episode, or
re-verified after an update) is left out too: its draft may come from a turn with the same noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from turntree.agents.engines.protocol import Completion
from turntree.spec_tree.rules.level import Level, worst_level
from turntree.spec_tree.rules.monitor import MonitorSums

logger = logging.getLogger(__name__)

ALARM = 4.0  #: absolute z-score above which a warning is logged; by chance once in 16,000 steps
_GROUPS = {Level.A: "exact", Level.B: "exact", Level.C: "trained_turns"}
_EXPLANATIONS = {
    "exact": "rollouts may not follow the policy's distribution",
    "trained_turns": "to some degree expected where the policy was trained on replayed turns; compare earlier steps",
}


class Monitors:
    """Sums over turns and their z-scores once per step. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, MonitorSums] = {}
        self._seeds: set[int] = set()
        self._last_seeds: set[int] = set()

    def first_use(self, seed: int | None) -> bool:
        """Return whether no turn of this or the last step used ``seed``; always true without a seed."""
        with self._lock:
            new = seed not in self._seeds and seed not in self._last_seeds
            if seed is not None:
                self._seeds.add(seed)
            return new

    def add(self, turns: Iterable[Completion]) -> None:
        """Add the sums of turns; turns with lenience are ignored."""
        with self._lock:
            for turn in turns:
                group = _GROUPS.get(Level(worst_level(turn.levels)))
                if group is not None:
                    self._sums[group] = self._sums.get(group, MonitorSums()) + _sums(turn)

    def close_step(self) -> dict[str, float]:
        """Return the z-scores since the last call, warn about those beyond ``ALARM``, and reset the sums."""
        with self._lock:
            sums, self._sums = self._sums, {}
            self._last_seeds, self._seeds = self._seeds, set()
        scores = _scores(sums)
        for name, score in scores.items():
            if abs(score) > ALARM:
                group = name.removeprefix("exactness/").partition("_")[0]
                logger.warning("%s is %.1f, beyond %g: %s", name, score, ALARM, _EXPLANATIONS[group])
        return scores

    def scores(self) -> dict[str, float]:
        """Return the z-scores since ``close_step`` as ``exactness/<group>_<monitor>_z``, except those without data."""
        with self._lock:
            sums = dict(self._sums)
        return _scores(sums)


def _scores(sums: Mapping[str, MonitorSums]) -> dict[str, float]:
    scores = {}
    for group, total in sums.items():
        for monitor, score in (("acceptance", total.acceptance_z), ("entropy", total.entropy_z)):
            if score is not None:
                scores[f"exactness/{group}_{monitor}_z"] = score
    return scores


def _sums(turn: Completion) -> MonitorSums:
    same = ("expected", "variance", "surprise", "entropy", "entropy_variance")
    return MonitorSums(accepted=turn.draft.matched, **{name: getattr(turn.draft, name) for name in same})
