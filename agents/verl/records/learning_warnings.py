"""Warnings about a training that cannot learn, after its first and its third step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from turntree.agents.episodes.episode import Turn
from turntree.agents.episodes.learning_checks import Advice, LearningFigures, learning_warnings
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.records.metrics import PREFIX
from turntree.agents.verl.records.recording import RunFolder

logger = logging.getLogger(__name__)

_CHECKED = (1, 3)
"""Steps after which a training is checked, counted from its start or resume."""
_ADVICE = Advice(
    tool_format="turntree.env_kwargs.tool_format",
    token_limit="turntree.env_kwargs.limits.max_turn_tokens, and data.max_response_length with it",
)


class LearningWarnings:
    """Checks the steps of one run.

    Args:
        folder: Folder of the run; an example of an unparsed call is read from its episodes.
        tools: Returns the names of the environment's tools.
    """

    def __init__(self, folder: RunFolder, tools: Callable[[], Collection[str]]) -> None:
        self._folder = folder
        self._tools = tools
        self._steps = 0

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Count a step, and log the warnings that are due; none if turntree's figures are not among the metrics."""
        self._steps += 1
        if self._steps not in _CHECKED or f"{PREFIX}episodes" not in metrics:
            return
        unparsed_turn = partial(first_unparsed, self._folder, step)
        for line in learning_warnings(figures_of(metrics), _ADVICE, tools=self._tools, unparsed_turn=unparsed_turn):
            logger.warning("after step %d %s", step, line)


def figures_of(metrics: Mapping[str, float]) -> LearningFigures:
    """The figures of a step from its metrics, which sum up all workers."""
    episodes, turns, calls = (metrics[PREFIX + name] for name in ("episodes", "turns", "tool_calls"))
    return LearningFigures(
        turns=episodes * turns,
        calls=round(episodes * calls),
        unparsed=metrics[f"{PREFIX}tool_calls_unparsed"],
        cut=metrics[f"{PREFIX}turns_cut"],
        equal_groups=metrics.get(f"{PREFIX}equal_groups"),
    )


def first_unparsed(folder: RunFolder, step: int) -> Turn | None:
    """The first recorded turn of a step with a call that could not be parsed; ``None`` if no episode is recorded."""
    path = folder.episodes(step)
    records = read_records(path, growing=True) if path.exists() else ()
    return next((turn for one in records for turn in one.episode.turns if turn.parse_error), None)
