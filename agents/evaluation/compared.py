"""Compare two finished evaluations, paired by task and sample.

Invariant: only episodes of the same task are compared, and differing settings are reported.
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

_SCORING = ("reward", "answer_format")  #: settings that define the reward
#: settings whose difference is not reported, because they change no pair or only the number of pairs
_IGNORED = ("name", "count", "samples", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvaluation:
    path: Path
    episodes: Mapping[tuple[int, int], Episode]  #: by (task, sample)
    settings: Mapping[str, Any]  #: from the last line; empty if the file has none

    @classmethod
    def read(cls, path: Path) -> FinishedEvaluation:
        """Read a file written by ``turntree eval --out``.

        Raises:
            UsageError: If the file holds no evaluation, or several evaluations.
            RecordError: If a line is damaged.
        """
        episodes: dict[tuple[int, int], Episode] = {}
        runs: set[Any] = set()
        settings: Mapping[str, Any] = {}
        if path.is_dir():
            raise UsageError(f"{path} is a folder; expected a file written by turntree eval --out")
        for labels, episode in read_records(path):
            key = labels.get("index"), labels.get("sample")
            if not isinstance(key[0], int) or not isinstance(key[1], int):
                raise UsageError(f"{path} is not an evaluation; expected a file written by turntree eval --out")
            episodes[key[0], key[1]] = episode
            runs.add(labels.get("run"))
            settings = labels.get("settings") or settings
        if not episodes:
            raise UsageError(f"{path} contains no episode")
        if len(runs) > 1:
            raise UsageError(
                f"{path} contains {len(runs)} evaluations with different settings; expected one evaluation"
            )
        return cls(path=path, episodes=episodes, settings=settings)

    @property
    def model(self) -> str:
        return str(self.settings.get("model") or self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    paired: Paired
    pairs: int
    tasks: int  #: tasks with a sample in both files
    only: tuple[int, int]  #: number of episodes that only the first file has, and that only the second file has
    differences: Mapping[str, tuple[Any, Any]]  #: differing settings -> both values

    @property
    def notes(self) -> list[str]:
        lines = []
        if any(self.only):
            first, second = self.only
            lines.append(
                f"compared {self.pairs} episodes of {self.tasks} tasks that both files have; "
                f"left out {first} only in the first file and {second} only in the second file"
            )
        lines += [
            f"{name} differs: {a!r:.60} and {b!r:.60}" for name, (a, b) in self.differences.items() if name != "model"
        ]
        if "seed" in self.differences:
            lines.append("the seeds differ, so the noise is not shared: use the interval of independent evaluations")
        return lines

    def figures(self) -> dict[str, Any]:
        counts = {
            "pairs": self.pairs,
            "tasks": self.tasks,
            "only in first": self.only[0],
            "only in second": self.only[1],
        }
        return {**self.paired.figures(), **counts, "settings that differ": dict(self.differences)}


def compare_files(before: FinishedEvaluation, after: FinishedEvaluation) -> Comparison:
    where = f"{before.path} and {after.path}"
    names = list(dict.fromkeys([*before.settings, *after.settings])) if before.settings and after.settings else []
    settings = {name: (before.settings.get(name), after.settings.get(name)) for name in names}
    differing = {name: both for name, both in settings.items() if both[0] != both[1] and name not in _IGNORED}
    for name in _SCORING:
        if name in differing:
            a, b = differing[name]
            raise UsageError(f"{where} use different rewards ({name} {a!r} and {b!r}); score both with the same reward")
    pairs = []
    for key in sorted(before.episodes.keys() & after.episodes.keys()):
        a, b = before.episodes[key], after.episodes[key]
        if a.env_id != b.env_id:
            raise UsageError(f"{where} use different environments, {a.env_id} and {b.env_id}")
        if a.task is not None and b.task is not None:
            first, second = ((task.id, task.prompt, task.answer) for task in (a.task, b.task))
            if first != second:
                raise UsageError(
                    f"{where} have different tasks: task {key[0]} is {first[0]!r}, {first[1]!r:.60} in the first and "
                    f"{second[0]!r}, {second[1]!r:.60} in the second; compare evaluations of the same data"
                )
        pairs.append(Pair(*key, a, b))
    if not pairs:
        raise UsageError(f"{where} share no task")
    return Comparison(
        paired=compare_pairs(pairs),
        pairs=len(pairs),
        tasks=len({pair.task for pair in pairs}),
        only=(len(before.episodes) - len(pairs), len(after.episodes) - len(pairs)),
        differences=differing,
    )
