"""Checks of a run's steps: warnings about a policy that cannot learn, and detection of failed steps.

In a failed step, every episode failed or ended before the policy had a turn. A temporary outage, for example of a
search service, may cause one failed step. Two consecutive failed steps end the run. A run whose steps all failed has
trained nothing, even if verl's exit status is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from turntree.agents.episodes.episode import Episode, Turn
from turntree.agents.episodes.failures import FailureKind, program_error
from turntree.agents.episodes.learning_checks import Advice, LearningFigures, learning_warnings
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.metrics import PREFIX
from turntree.agents.verl.records.recording import RunFolder

logger = logging.getLogger(__name__)

IN_A_ROW = 2  #: consecutive failed steps after which a run is ended
_ROUNDING = 1e-6  #: tolerance when two shares should sum to 1


class FailedSteps:
    """Counts the failed steps of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._steps = 0
        self._failed: list[int] = []  # consecutive failed steps up to the last step
        self._kinds: list[str] = []

    def see(self, step: int, metrics: Mapping[str, float]) -> None:  # count a step, failed or not
        self._steps += 1
        failures, ungraded, errors = (
            metrics.get(PREFIX + name, 0.0) for name in ("failures", "ungraded", "program_errors")
        )
        if failures + ungraded < 1.0 - _ROUNDING and metrics.get(f"{PREFIX}turns") != 0.0:
            self._failed.clear()
            return
        self._failed.append(step)
        self._kinds = [kind for kind in FailureKind if metrics.get(f"{PREFIX}failed_attempts/{kind}")]
        # Ungraded episodes were played to their end, so the failed attempts do not include them.
        if ungraded and FailureKind.REWARD not in self._kinds:
            self._kinds.append(FailureKind.REWARD)
        self._kinds += ["program"] if errors else []

    @property
    def ends_the_run(self) -> bool:
        """Whether the last ``IN_A_ROW`` steps failed."""
        return len(self._failed) >= IN_A_ROW

    @property
    def learnt_nothing(self) -> bool:
        """Whether every step so far failed."""
        return bool(self._failed) and len(self._failed) == self._steps

    def __str__(self) -> str:
        steps = ", ".join(map(str, self._failed))
        kinds = " and ".join(self._kinds)
        outcome = f"failed because of the {kinds}" if kinds else "ended before the policy had a turn"
        step = self._failed[-1]
        first = first_failure(self._folder, step) or first_program_error(self._folder, step)
        cause = first or f"see {self._folder.log} for the cause"
        return f"every episode of step {steps} {outcome}, and nothing was learnt from them; {cause}"


def first_failure(folder: RunFolder, step: int) -> str:
    """Return a step's first recorded failure in one line, with its kind and task; empty if there is none."""
    return _first(folder, step, lambda episode: episode.failure, "failure")


def first_program_error(folder: RunFolder, step: int) -> str:
    """Return the first error of a program that gave no answer in a step; empty if there is none."""
    return _first(folder, step, program_error, "error")


def _first(folder: RunFolder, step: int, cause: Callable[[Episode], str], name: str) -> str:
    path = folder.episodes(step)
    for record in read_records(path) if path.exists() else ():
        episode = record.episode
        if reason := cause(episode):
            task = f"task {episode.task.id} in " if episode.task is not None else ""
            kind = "program" if name == "error" else episode.failure_kind or "infrastructure"
            return f"the first {name} of step {step} ({kind}, {task}{episode.env_id}): {reason}"
    return ""


_CHECKED_STEPS = (1, 3)  #: counted from the run's start or resume
_ADVICE = Advice(
    tool_format="turntree.env_kwargs.tool_format",
    token_limit="turntree.env_kwargs.limits.max_turn_tokens, and data.max_response_length with it",
)


class LearningWarnings:
    """Warns about steps from which a policy cannot learn."""

    def __init__(self, folder: RunFolder, tools: Callable[[], Collection[str]]) -> None:
        self._folder = folder
        self._tools = tools
        self._steps = 0

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count a step and log its warnings; without turntree's metrics, log no warnings."""
        self._steps += 1
        if self._steps not in _CHECKED_STEPS or f"{PREFIX}episodes" not in metrics:
            return
        unparsed_turn = partial(first_unparsed, self._folder, step)
        for line in learning_warnings(figures_of(metrics), _ADVICE, tools=self._tools, unparsed_turn=unparsed_turn):
            logger.warning("after step %d %s", step, line)


def figures_of(metrics: Mapping[str, float]) -> LearningFigures:
    # verl logs means per episode, but the checks need counts over all workers.
    episodes, turns, calls = (metrics[PREFIX + name] for name in ("episodes", "turns", "tool_calls"))
    return LearningFigures(
        turns=episodes * turns,
        calls=round(episodes * calls),
        unparsed=metrics[f"{PREFIX}tool_calls_unparsed"],
        cut=metrics[f"{PREFIX}turns_cut"],
        equal_groups=metrics.get(f"{PREFIX}equal_groups"),
    )


def first_unparsed(folder: RunFolder, step: int) -> Turn | None:
    path = folder.episodes(step)
    records = read_records(path, growing=True) if path.exists() else ()
    return next((turn for record in records for turn in record.episode.turns if turn.parse_error), None)
