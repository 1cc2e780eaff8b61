"""The parts of a recorded run that the page shows: its files of episodes, its curves, its tokenizer.

Nothing is written here, and nothing is guessed: an existing file that cannot
be read is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.episodes.record import UNFINISHED, Record, episode_files, read_records
from turntree.agents.errors import AgentError, MissingExtra, RecordError
from turntree.agents.yaml_files import read_yaml
from turntree.envs.data.hub import hub_asked_once
from turntree.envs.data.json_files import json_lines

logger = logging.getLogger(__name__)
_MOST = 1e300
"""Largest size of a figure: sums and differences of some stay finite."""


class Figures(NamedTuple):
    """The figures of a training step."""

    where: str
    """File and line."""
    step: int
    values: Mapping[str, Any]
    """Figures by name."""

    def number(self, name: str) -> float | None:
        """A figure; ``None`` where it is missing, null or infinite, as a training may write it.

        Raises:
            RecordError: If it is something else.
        """
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise RecordError(f"{self.where}: expected a number as {name!r}, got {value!r:.60}")
        return float(value) if value is not None and abs(value) <= _MOST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A recorded run."""

    path: Path
    """The given path: a folder, or a file of episodes."""
    files: tuple[Path, ...]
    """Files of episodes in order."""
    metrics: tuple[Figures, ...]
    """The trainer's figures of each step; empty without training."""
    engine: tuple[Figures, ...]
    """The engine's counters of each step; empty without training."""
    plain: tuple[Figures, ...]
    """Its counters of each step that `turntree demo` played again without drafts."""
    drafted: tuple[Figures, ...]
    """The same with drafts."""
    model: str
    """Model directory or id that the run's configuration names; empty where unknown."""

    @classmethod
    def open(cls, path: Path) -> Source:
        """Find the files of a run at ``path``.

        Raises:
            RecordError: If there are no episodes, or a file of figures is damaged.
            FileNotFoundError: If there is nothing at ``path``.
        """
        return cls(
            path=path,
            files=tuple(episode_files(path)),
            metrics=tuple(_figures(path / "metrics.jsonl", within="data")),
            engine=tuple(_figures(path / "engine.jsonl")),
            plain=tuple(_figures(path / "comparison.jsonl", within="plain")),
            drafted=tuple(_figures(path / "comparison.jsonl", within="speculative")),
            model=_model(path / "config.yaml"),
        )

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All files that are read."""
        beside = ("metrics.jsonl", "engine.jsonl", "comparison.jsonl", "config.yaml")
        return (*self.files, *(self.path / name for name in beside if self.path.is_dir()))

    def records(self, *, growing: bool = False) -> Iterator[Record]:
        """All recorded episodes, file by file; ``growing`` leaves out what is being written.

        Raises:
            RecordError: If a line is damaged, or there is no episode.
        """
        if not growing and (left := len([*(self.path / UNFINISHED).glob("*.turns")])):
            logger.warning(
                "sessions in %s that have not ended: %d, which are not shown; if their server was killed, the next "
                "start of `turntree serve --record %s` records them",
                *(self.path, left, self.path),
            )
        records = chain.from_iterable(read_records(file, growing=growing) for file in self.files)
        first = next(records, None)
        if first is None:
            raise RecordError(f"{self.path} is empty: it holds no episode")
        yield first
        yield from records

    def tokenizer(self, named: str | None = None) -> Any:
        """The tokenizer of a model directory or id; without one that of the run's model if it is here, else none.

        Raises:
            AgentError: If the named one cannot be read.
        """
        if named is None and not (self.model and Path(self.model).is_dir()):
            return None
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            if named is None:
                return None
            raise MissingExtra("--tokenizer", "local") from error
        name = named or self.model
        with nullcontext() if Path(name).is_dir() else hub_asked_once() as alone:
            try:
                return AutoTokenizer.from_pretrained(name)
            except (OSError, ValueError) as error:
                if named is None:
                    return None
                reason = error if alone is None else f"{alone}, and it is not in the cache"
                raise AgentError(
                    f"--tokenizer {named}: expected a model directory or id with a tokenizer; {reason}"
                ) from error


def _figures(path: Path, *, within: str | None = None) -> Iterator[Figures]:
    """The figures of each line, which are those of its entry ``within`` where that is named."""

    def refuse(number: int, problem: str) -> RecordError:
        return RecordError(f"{path}, line {number}: {problem}")

    if not path.exists():
        return
    for number, row in json_lines(path, refuse, growing=True):
        step, values = row.get("step"), row.get(within, {}) if within else row
        if type(step) is not int or abs(step) > 1 << 53:  # from there on floats leave numbers out
            raise refuse(number, f'expected an object with the whole number "step", got {row!r:.60}')
        if not isinstance(values, dict):
            raise refuse(number, f"expected figures by name in {within!r}, got {values!r:.60}")
        yield Figures(f"{path}, line {number}", step, values)


def _model(path: Path) -> str:
    """The model that a run's configuration names; empty where it names none, or refers to something else."""
    found = read_yaml(path) if path.exists() else None
    for key in ("actor_rollout_ref", "model", "path"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) and "${" not in found else ""
