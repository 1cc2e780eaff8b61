"""Exactness monitors: z-scores that test during a run whether rollouts follow the policy's distribution.

Every turn brings the sums that its engine took while sampling; a step's turns
give the z-scores of ``spec_tree.monitor``, both near N(0, 1) if all is exact.

Turns that replay tokens that the policy was trained on (level C) are monitored
separately: the policy depends on the tokens, so their scores need not stay near
0, though a fault shows in them as well. Turns with lenience (level D) are biased
by design and are left out. So are turns requested again with the same seed in
the same step or the next one, as by an episode that is tried again, or verified again
after an update: a store that has seen them once drafts them from their own noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from turntree.agents.engines.protocol import Completion
from turntree.spec_tree.rules.level import Level, worst_level
from turntree.spec_tree.rules.monitor import MonitorSums

logger = logging.getLogger(__name__)

ALARM = 4.0
"""Absolute z-score above which a warning is logged: by chance once in 16,000 steps."""
_GROUPS = {Level.A: "exact", Level.B: "exact", Level.C: "trained_turns"}
_EXPLANATIONS = {
    "exact": "rollouts may not follow the policy's distribution",
    "trained_turns": "expected to some degree of turns that the policy was trained on; compare with earlier steps",
}


class Monitors:
    """Sums over turns, and their z-scores once a step. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, MonitorSums] = {}
        self._seeds: set[int] = set()
        self._last_seeds: set[int] = set()

    def first_use(self, seed: int | None) -> bool:
        """Whether noise of ``seed`` was used neither in this step nor in the last one; without a seed it always is."""
        with self._lock:
            new = seed not in self._seeds and seed not in self._last_seeds
            if seed is not None:
                self._seeds.add(seed)
            return new

    def add(self, turns: Iterable[Completion]) -> None:
        """Add the sums of turns."""
        with self._lock:
            for turn in turns:
                group = _GROUPS.get(Level(worst_level(turn.levels)))
                if group is not None:
                    self._sums[group] = self._sums.get(group, MonitorSums()) + _sums(turn)

    def close_step(self) -> dict[str, float]:
        """The z-scores since the last call; a warning names each that is further from 0 than
        ``ALARM``. The sums start anew."""
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
        """The z-scores since the last ``close_step``, as ``exactness/<group>_<monitor>_z``; those without data are
        left out."""
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
    draft = turn.draft
    return MonitorSums(
        accepted=draft.matched,
        expected=draft.expected,
        variance=draft.variance,
        surprise=draft.surprise,
        entropy=draft.entropy,
        entropy_variance=draft.entropy_variance,
    )
