"""The parts of a recorded run that the page shows: episodes, metrics, tokenizer. Nothing is written."""

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
_MAX_VALUE = 1e300  #: largest metric value, so that sums and differences stay finite


class Figures(NamedTuple):
    where: str  #: file and line
    step: int
    values: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """Return a metric; ``None`` if it is missing, null or infinite.

        Raises:
            RecordError: If the metric is not a number.
        """
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise RecordError(f"{self.where}: expected a number for {name!r}, got {value!r:.60}")
        return float(value) if value is not None and abs(value) <= _MAX_VALUE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path  #: folder, or episode file
    files: tuple[Path, ...]  #: episode files in order
    metrics: tuple[Figures, ...]  #: the trainer's metrics per step; empty without training
    engine: tuple[Figures, ...]  #: the engine's counters per step; empty without training
    plain: tuple[Figures, ...]  #: counters of the steps that `turntree demo` replayed without drafts
    drafted: tuple[Figures, ...]  #: counters of the steps that `turntree demo` replayed with drafts
    model: str  #: model folder or id in the run's configuration; empty if unknown

    @classmethod
    def open(cls, path: Path) -> Source:
        """Find the files of a run at ``path``.

        Raises:
            RecordError: If there are no episodes, or a metrics file is damaged.
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
        metric_files = ("metrics.jsonl", "engine.jsonl", "comparison.jsonl", "config.yaml")
        return (*self.files, *(self.path / name for name in metric_files if self.path.is_dir()))

    def records(self, *, growing: bool = False) -> Iterator[Record]:
        """Yield all recorded episodes; ``growing`` skips incomplete lines.

        Raises:
            RecordError: If a line is damaged, or there is no episode.
        """
        if not growing and (unfinished := len([*(self.path / UNFINISHED).glob("*.turns")])):
            logger.warning(
                "%s: %d unfinished sessions are not shown; if their server was killed, the next start of "
                "`turntree serve --record %s` records them",
                *(self.path, unfinished, self.path),
            )
        records = chain.from_iterable(read_records(file, growing=growing) for file in self.files)
        first = next(records, None)
        if first is None:
            raise RecordError(f"{self.path} contains no episode")
        yield first
        yield from records

    def tokenizer(self, named: str | None = None) -> Any:
        """Return the named tokenizer, or the tokenizer of the run's model folder, else ``None``.

        Raises:
            AgentError: If the named tokenizer cannot be read.
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
        with nullcontext() if Path(name).is_dir() else hub_asked_once() as unreachable:
            try:
                return AutoTokenizer.from_pretrained(name)
            except (OSError, ValueError) as error:
                if named is None:
                    return None
                reason = error if unreachable is None else f"{unreachable}, and the model is not in the cache"
                raise AgentError(
                    f"--tokenizer {named}: expected a model folder or id with a tokenizer; {reason}"
                ) from error


def _figures(path: Path, *, within: str | None = None) -> Iterator[Figures]:
    # `within` is the key of the metrics in each row; without `within`, the whole row is metrics.

    def refuse(number: int, problem: str) -> RecordError:
        return RecordError(f"{path}, line {number}: {problem}")

    if not path.exists():
        return
    for number, row in json_lines(path, refuse, growing=True):
        step, values = row.get("step"), row.get(within, {}) if within else row
        # The page's numbers are floats, which skip integers above 2**53. `type` is used because bool is an int.
        if type(step) is not int or abs(step) > 1 << 53:
            raise refuse(number, f'expected an object with an integer "step", got {row!r:.60}')
        if not isinstance(values, dict):
            raise refuse(number, f"expected an object of metrics in {within!r}, got {values!r:.60}")
        yield Figures(f"{path}, line {number}", step, values)


def _model(path: Path) -> str:
    # Return "" if the configuration names no model, or if the name is a reference (``${...}``) to another key.
    value = read_yaml(path) if path.exists() else None
    for key in ("actor_rollout_ref", "model", "path"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and "${" not in value else ""
