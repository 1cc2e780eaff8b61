"""The parts of a recorded run that the page shows: its files of episodes, its curves, its tokenizer.

Nothing is written here, and nothing is guessed: an existing file that cannot
be read is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.episodes.record import Record, read_records
from turntree.agents.errors import RecordError
from turntree.envs.data.json_files import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A recorded run."""

    path: Path
    """The given path: a folder, or a file of episodes."""
    files: tuple[Path, ...]
    """Files of episodes in order."""
    metrics: tuple[dict[str, Any], ...]
    """The trainer's figures, ``{"step", "data"}`` each; empty without training."""
    engine: tuple[dict[str, Any], ...]
    """The engine's counters, one mapping per step; empty without training."""
    model: str
    """Model directory or id that the run's configuration names; empty where unknown."""

    @classmethod
    def open(cls, path: Path) -> Source:
        """Find the files of a run at ``path``.

        Raises:
            RecordError: If there are no episodes, or a file of figures is damaged.
            FileNotFoundError: If there is nothing at ``path``.
        """
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}; give the folder of a run or a file of episodes")
        if path.is_file():
            return cls(path=path, files=(path,), metrics=(), engine=(), model="")
        files = sorted(path.glob("episodes/*.jsonl")) or sorted(path.glob("*episodes*.jsonl"))
        if not files:
            raise RecordError(
                f"{path} holds no episodes: expected {path / 'episodes'}/*.jsonl as `turntree train` writes them; "
                "`turntree eval --out FILE` writes a file that can be named itself"
            )
        return cls(
            path=path,
            files=tuple(files),
            metrics=tuple(_lines(path / "metrics.jsonl")),
            engine=tuple(_lines(path / "engine.jsonl")),
            model=_model(path / "config.yaml"),
        )

    def records(self) -> Iterator[Record]:
        """All recorded episodes, file by file.

        Raises:
            RecordError: If a line is damaged.
        """
        for file in self.files:
            yield from read_records(file)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    def refuse(number: int, said: str) -> RecordError:
        return RecordError(f"{path}, line {number}: {said}")

    if not path.exists():
        return
    for number, row in json_lines(path, refuse, growing=True):
        if not isinstance(row.get("step"), int):
            raise refuse(number, f'expected an object with the field "step", got {row!r:.60}')
        yield row


def _model(path: Path) -> str:
    if not path.exists():
        return ""
    from omegaconf import OmegaConf

    return str(OmegaConf.select(OmegaConf.load(path), "actor_rollout_ref.model.path", default="") or "")
