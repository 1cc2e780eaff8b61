"""Detection of a run in which every episode fails or no policy is asked for a turn, so that nothing is learnt.

One such step may be a search service that was down for a while. Two in a row
are a run that only wastes time, and a run in which every step was one has
trained nothing, whatever verl's exit status is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.failures import FailureKind, program_error
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
        broken, ungraded, errors = (
            metrics.get(PREFIX + name, 0.0) for name in ("failures", "ungraded", "program_errors")
        )
        if broken + ungraded < 1.0 - _ROUNDING and metrics.get(f"{PREFIX}turns") != 0.0:
            self._lost.clear()
            return
        self._lost.append(step)
        self._kinds = [kind for kind in FailureKind if metrics.get(f"{PREFIX}lost_{kind}")]
        if ungraded and FailureKind.REWARD not in self._kinds:
            self._kinds.append(FailureKind.REWARD)
        self._kinds += ["program"] if errors else []

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
        kinds = " and ".join(self._kinds)
        happened = f"was lost to the {kinds}" if kinds else "ended before the policy had a turn"
        return f"every episode of step {steps} {happened}, and nothing was learnt from them{self._cause()}"

    def _cause(self) -> str:
        step = self._lost[-1]
        first = first_failure(self._folder, step) or first_program_error(self._folder, step)
        return f"; {first}" if first else f"; why is in {self._folder.log}"


def first_failure(folder: RunFolder, step: int) -> str:
    """The first recorded failure of a step in one line, with its kind and task; empty if there is none."""
    return _first(folder, step, lambda episode: episode.failure, "failure")


def first_program_error(folder: RunFolder, step: int) -> str:
    """Likewise the first error of a program that gave no answer."""
    return _first(folder, step, program_error, "error")


def _first(folder: RunFolder, step: int, cause: Callable[[Episode], str], name: str) -> str:
    path = folder.episodes(step)
    for record in read_records(path) if path.exists() else ():
        episode = record.episode
        if why := cause(episode):
            task = f" of task {episode.task.id}" if episode.task is not None else ""
            kind = "program" if name == "error" else episode.failure_kind or "surroundings"
            return f"the first {name} of step {step} is the {kind}'s{task} in {episode.env_id}: {why}"
    return ""
