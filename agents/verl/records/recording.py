"""The files of a training run in its folder.

Every process writes its own files, with one exception: all agent-loop workers append to a step's file of episodes.
``EpisodeWriter`` makes sure that their lines do not mix.
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
    """Paths inside the folder of a run. Steps are numbered from 1."""

    root: Path

    @property
    def metrics(self) -> Path:  # written by verl: a line ``{"step", "data"}`` per step
        return self.root / "metrics.jsonl"

    @property
    def table(self) -> Path:  # the metrics with a row per step; written when a training ends
        return self.root / "metrics.csv"

    @property
    def engine(self) -> Path:  # the engine's counters, a line per step
        return self.root / "engine.jsonl"

    @property
    def log(self) -> Path:  # all output of verl and Ray
        return self.root / "train.log"

    @property
    def config(self) -> Path:  # the whole configuration that verl was started with
        return self.root / "config.yaml"

    @property
    def phases(self) -> Path:  # the phases of the start, a line ``{"phase"}`` each
        return self.root / "phases.jsonl"

    def episodes(self, step: int) -> Path:  # a line ``{"step", "index", "session", "seed", "episode"}`` each
        return self.root / "episodes" / f"step_{step:06d}.jsonl"

    def weights(self, step: int) -> Path:  # the weights that sampled ``step``
        return self.root / "weights" / f"step_{step:06d}.safetensors"

    def rows(self, split: str) -> Path:
        return self.root / "data" / f"{split}.parquet"

    @property
    def checkpoints(self) -> Path:  # verl's checkpoints, a folder ``global_step_N`` each
        return self.root / "checkpoints"

    @property
    def earlier_metrics(self) -> Path:  # metrics of the steps before a resume, kept until the resumed run ends
        return self.root / "metrics_before.jsonl"

    def clear(self) -> None:
        """Remove the files of an earlier run; all other files are kept."""
        stale = [self.metrics, self.table, self.earlier_metrics, self.engine, self.log, self.config, self.phases]
        stale += [self.root / "comparison.jsonl"]  # written by a demo
        stale += [*self.root.glob("episodes/step_*.jsonl"), *self.root.glob("weights/step_*.safetensors")]
        for path in stale:
            path.unlink(missing_ok=True)


class EpisodeRecorder:
    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def write(self, episode: Episode, *, step: int, index: int, session: int, seed: int) -> None:
        with EpisodeWriter(self.folder.episodes(step)) as writer:
            writer.write(episode, step=step, index=index, session=session, seed=seed)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def save_weights(path: Path, named: Iterable[tuple[str, Tensor]]) -> None:
    """Write tensors to a safetensors file, completely or not at all."""
    from safetensors.torch import save_file

    with whole_file(path) as partial:
        save_file({name: tensor.contiguous().clone() for name, tensor in named}, partial)
