"""Detection of a run in which every episode fails, so that nothing is learnt.

One such step may be a search service that was down for a while. Two in a row
are a run that only wastes time, and a run in which every step was one has
trained nothing, whatever verl's exit status is.
"""

from __future__ import annotations

from collections.abc import Mapping

from turntree.agents.episodes.failures import FailureKind
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.metrics import PREFIX
from turntree.agents.verl.records.recording import RunFolder

IN_A_ROW = 2
"""Consecutive steps without one played episode after which a run is ended."""
_ROUNDING = 1e-6
"""Rounding tolerance of two shares that sum to 1."""


class LostSteps:
    """Counts the steps of one run in which every episode failed.

    Args:
        folder: Folder of the run; the causes of failures are read from its records.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._steps = 0
        self._lost: list[int] = []
        self._kinds: list[str] = []

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count a step."""
        self._steps += 1
        broken, undecided = (metrics.get(PREFIX + name, 0.0) for name in ("failures", "undecided"))
        if broken + undecided < 1.0 - _ROUNDING:
            self._lost.clear()
            return
        self._lost.append(step)
        self._kinds = [kind for kind in FailureKind if metrics.get(f"{PREFIX}lost_{kind}")]
        if undecided and FailureKind.REWARD not in self._kinds:
            self._kinds.append(FailureKind.REWARD)

    @property
    def ends_the_run(self) -> bool:
        """Whether the last ``IN_A_ROW`` steps were lost."""
        return len(self._lost) >= IN_A_ROW

    @property
    def learnt_nothing(self) -> bool:
        """Whether every step so far was lost."""
        return bool(self._lost) and len(self._lost) == self._steps

    def __str__(self) -> str:
        steps = ", ".join(map(str, self._lost))
        kinds = " and ".join(self._kinds) or "surroundings"
        return f"every episode of step {steps} was lost to the {kinds}, and nothing was learnt from them{self._cause()}"

    def _cause(self) -> str:
        first = first_failure(self._folder, self._lost[-1])
        return f"; {first}" if first else f"; why is in {self._folder.log}"


def first_failure(folder: RunFolder, step: int) -> str:
    """The first recorded failure of a step in one line, with its kind and task; empty if there is none."""
    path = folder.episodes(step)
    for record in read_records(path) if path.exists() else ():
        episode = record.episode
        if episode.failure:
            task = f" of task {episode.task.id}" if episode.task is not None else ""
            kind = episode.failure_kind or "surroundings"
            return f"the first failure of step {step} is the {kind}'s{task}: {episode.failure}"
    return ""
