"""The files of a training run in its folder.

Several processes write, each its own files, except for the episodes of a step,
which every agent-loop worker appends to; ``EpisodeWriter`` keeps their lines
whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import EpisodeWriter
from turntree.agents.files import whole_file

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside the folder of a run. Steps count from 1."""

    root: Path

    @property
    def metrics(self) -> Path:
        """verl's metrics, one line ``{"step", "data"}`` per step."""
        return self.root / "metrics.jsonl"

    @property
    def table(self) -> Path:
        """The metrics as CSV, a row for each step; written when a training ends."""
        return self.root / "metrics.csv"

    @property
    def engine(self) -> Path:
        """The engine's counters, one line per step."""
        return self.root / "engine.jsonl"

    @property
    def log(self) -> Path:
        """All output of verl and Ray."""
        return self.root / "train.log"

    @property
    def config(self) -> Path:
        """The whole configuration that verl was started with."""
        return self.root / "config.yaml"

    @property
    def phases(self) -> Path:
        """The phases of the start, one line ``{"phase"}`` each."""
        return self.root / "phases.jsonl"

    def episodes(self, step: int) -> Path:
        """Episodes of ``step``, one line ``{"step", "index", "session", "seed", "episode"}`` each."""
        return self.root / "episodes" / f"step_{step:06d}.jsonl"

    def weights(self, step: int) -> Path:
        """The weights that sampled ``step``."""
        return self.root / "weights" / f"step_{step:06d}.safetensors"

    def rows(self, split: str) -> Path:
        """The tasks of ``split`` (train or val) as verl reads them."""
        return self.root / "data" / f"{split}.parquet"

    @property
    def checkpoints(self) -> Path:
        """verl's checkpoints, a folder ``global_step_N`` each."""
        return self.root / "checkpoints"

    @property
    def earlier_metrics(self) -> Path:
        """Metrics of the steps before a resume, while the run goes on."""
        return self.root / "metrics_before.jsonl"

    def clear(self) -> None:
        """Remove the files of an earlier run; others are kept."""
        stale = [self.metrics, self.table, self.earlier_metrics, self.engine, self.log, self.config, self.phases]
        stale += [self.root / "comparison.jsonl"]  # of a demo
        stale += [*self.root.glob("episodes/step_*.jsonl"), *self.root.glob("weights/step_*.safetensors")]
        for path in stale:
            path.unlink(missing_ok=True)


class EpisodeRecorder:
    """Writes the episodes of a run, each to the file of its training step."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def write(self, episode: Episode, *, step: int, index: int, session: int, seed: int) -> None:
        """Append one episode.

        Args:
            step: Training step, from 1.
            session: Number of the sample in the row's group.
        """
        with EpisodeWriter(self.folder.episodes(step)) as writer:
            writer.write(episode, step=step, index=index, session=session, seed=seed)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append ``row`` as one JSON line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def save_weights(path: Path, named: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    with whole_file(path) as partial:
        save_file({name: tensor.contiguous().clone() for name, tensor in named}, partial)
