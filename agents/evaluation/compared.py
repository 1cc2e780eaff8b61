"""Two finished evaluations, read from their files and paired by task and sample.

Invariant: only episodes of the same task are compared. What differs between the settings of the two is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import read_records
from turntree.agents.errors import UsageError
from turntree.agents.evaluation.paired import Pair, Paired, compare_pairs

_SCORING = ("reward", "answer_format")
"""Settings that decide what a reward means."""
_UNTOLD = ("name", "count", "samples", "checkpoint")
"""Settings whose difference changes no comparison, or shows in the number of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvaluation:
    """What is in the file of an evaluation."""

    path: Path
    episodes: Mapping[tuple[int, int], Episode]
    """By number of task and sample."""
    settings: Mapping[str, Any]
    """Of the last line; empty where the file does not tell them."""

    @classmethod
    def read(cls, path: Path) -> FinishedEvaluation:
        """Read a file that ``turntree eval --out`` wrote.

        Raises:
            UsageError: If it holds no evaluation, or more than one.
            RecordError: If a line is damaged.
            OSError: If it cannot be read.
        """
        episodes: dict[tuple[int, int], Episode] = {}
        runs: set[Any] = set()
        settings: Mapping[str, Any] = {}
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file that turntree eval --out wrote")
        for labels, episode in read_records(path):
            place = labels.get("index"), labels.get("sample")
            if not isinstance(place[0], int) or not isinstance(place[1], int):
                raise UsageError(f"{path} is no file of an evaluation; name one that turntree eval --out wrote")
            episodes[place[0], place[1]] = episode
            runs.add(labels.get("run"))
            settings = labels.get("settings") or settings
        if not episodes:
            raise UsageError(f"{path} holds no episode")
        if len(runs) > 1:
            raise UsageError(f"{path} holds episodes of {len(runs)} evaluations with different settings; compare one")
        return cls(path=path, episodes=episodes, settings=settings)

    @property
    def model(self) -> str:
        """Name of the model, else of the file."""
        return str(self.settings.get("model") or self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The second evaluation against the first one."""

    paired: Paired
    pairs: int
    tasks: int
    """Tasks of which both have a sample."""
    only: tuple[int, int]
    """Episodes that only the first, and only the second one has."""
    differences: Mapping[str, tuple[Any, Any]]
    """Settings that differ, with both values."""

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know, a line each."""
        lines = []
        if any(self.only):
            first, second = self.only
            lines.append(
                f"compared: {self.pairs} episodes of {self.tasks} tasks, which both files have; "
                f"only the first file has {first} more, only the second one {second}"
            )
        lines += [
            f"{name} differs: {a!r:.60} and {b!r:.60}" for name, (a, b) in self.differences.items() if name != "model"
        ]
        if "seed" in self.differences:
            lines.append("the seeds differ, so the two share no noise: take the interval of independent evaluations")
        return lines

    def figures(self) -> dict[str, Any]:
        """Numbers by name, those of ``Paired`` among them."""
        own = {"pairs": self.pairs, "tasks": self.tasks, "only in first": self.only[0], "only in second": self.only[1]}
        return {**self.paired.figures(), **own, "settings that differ": dict(self.differences)}


def compare_files(before: FinishedEvaluation, after: FinishedEvaluation) -> Comparison:
    """Compare two evaluations of the same tasks.

    Raises:
        UsageError: If environments, tasks or rewards differ, or no task is in both.
    """
    where = f"{before.path} and {after.path}"
    names = list(dict.fromkeys([*before.settings, *after.settings])) if before.settings and after.settings else []
    settings = {name: (before.settings.get(name), after.settings.get(name)) for name in names}
    differing = {name: both for name, both in settings.items() if both[0] != both[1] and name not in _UNTOLD}
    for name in _SCORING:
        if name in differing:
            a, b = differing[name]
            raise UsageError(f"{where} were scored by other rewards ({name} {a!r} and {b!r}); score both alike")
    pairs = []
    for place in sorted(before.episodes.keys() & after.episodes.keys()):
        a, b = before.episodes[place], after.episodes[place]
        if a.env_id != b.env_id:
            raise UsageError(f"{where} are of other environments, {a.env_id} and {b.env_id}")
        if a.task is not None and b.task is not None:
            one, other = ((task.id, task.prompt, task.answer) for task in (a.task, b.task))
            if one != other:
                raise UsageError(
                    f"{where} are of other tasks: task {place[0]} is {one[0]!r}, {one[1]!r:.60} in the first and "
                    f"{other[0]!r}, {other[1]!r:.60} in the second one; compare evaluations of the same data"
                )
        pairs.append(Pair(*place, a, b))
    if not pairs:
        raise UsageError(f"{where} have no task in common")
    return Comparison(
        paired=compare_pairs(pairs),
        pairs=len(pairs),
        tasks=len({pair.task for pair in pairs}),
        only=(len(before.episodes) - len(pairs), len(after.episodes) - len(pairs)),
        differences=differing,
    )
