"""Resuming a run from a checkpoint: its step, and the records to keep.

Records of later steps are removed, as they are written again; the rest is
kept. Of an asynchronous training an episode that was begun before the checkpoint may
have ended, or been verified again, by weights of after it, which the resumed run never has:
these lines go, too. verl empties its file of metrics when it starts: the old content is moved
away meanwhile, and joined with the new one at the end, or at the next start if
there was no regular end.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turntree.agents.files import write_whole
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run.full_disk import remove_halves

logger = logging.getLogger(__name__)

LATEST = "latest_checkpointed_iteration.txt"
"""Written by verl when a checkpoint is whole."""


def checkpoints_of(trainer: Mapping[str, Any], folder: RunFolder) -> Path:
    """The folder of the checkpoints that a run resumes from.

    Args:
        trainer: verl's section ``trainer``.
    """
    path = resume_path(trainer)
    return folder.checkpoints if path is None else Path(path).parent


def resume_path(trainer: Mapping[str, Any]) -> str | None:
    """The checkpoint that the configuration names to resume from, as an absolute path; ``None`` if it names none.

    Raises:
        ConfigError: If it must name one and does not.
    """
    if trainer["resume_mode"] != "resume_path":
        return None
    path = trainer["resume_from_path"]
    if not isinstance(path, str):
        raise ConfigError(f"trainer.resume_mode=resume_path needs trainer.resume_from_path=FOLDER, got {path!r}")
    return str(Path(path).absolute())


def resumed_step(trainer: Mapping[str, Any], folder: RunFolder) -> int:
    """Updates that the policy has seen when the run begins; 0 for a new run.

    Raises:
        ConfigError: If the named checkpoint does not exist, or verl's file of the latest step cannot be read.
    """
    if trainer["resume_mode"] == "disable":
        return 0
    path = resume_path(trainer)
    if path is not None:
        number = re.fullmatch(r"global_step_(\d+)", Path(path).name)
        if number is None or not Path(path).is_dir():
            raise ConfigError(f"trainer.resume_from_path is a folder global_step_N of a checkpoint, got {path}")
        return int(number[1])
    latest = folder.checkpoints / LATEST
    if not latest.exists():
        return 0
    step = latest_step(latest)
    if step is None:
        text = latest.read_text(encoding="utf-8")
        raise ConfigError(
            f"{latest} should hold the number of a step, got {text[:40]!r}; write that of a folder global_step_N "
            "beside it, or set trainer.resume_mode=disable"
        )
    return step


def latest_step(latest: Path) -> int | None:
    """The step that verl's file names; ``None`` if it names none.

    verl writes the file last, and a full disk leaves it empty: the newest checkpoint is then whole.
    """
    text = latest.read_text(encoding="utf-8").strip()
    if not text:
        there = [path.name.removeprefix("global_step_") for path in latest.parent.glob("global_step_*")]
        return max((int(number) for number in there if number.isdigit()), default=None)
    return int(text) if text.isdigit() else None


class Checkpoints:
    """Where a stopped run goes on, in words.

    Args:
        trainer: verl's section ``trainer``.
    """

    def __init__(self, trainer: Mapping[str, Any], folder: RunFolder, advice: str) -> None:
        self._advice = advice
        self._resumes = trainer["resume_mode"] == "auto"
        self._latest = folder.checkpoints / LATEST
        self._earlier = None if self._resumes else self._stamp  # of a run that is not this one
        self._folder = folder.checkpoints
        self._there = frozenset(path.name for path in self._folder.glob("global_step_*"))

    @property
    def _stamp(self) -> int | None:
        return self._latest.stat().st_mtime_ns if self._latest.exists() else None

    @property
    def step(self) -> int:
        """Step of the last checkpoint of this run that is whole, 0 without one."""
        if self._stamp is None or self._stamp == self._earlier:
            return 0
        return latest_step(self._latest) or 0

    def remove_halves(self) -> None:
        """Remove what a full disk left of the checkpoint that was written last."""
        remove_halves(self._folder, self.step, self._there)

    def __str__(self) -> str:
        if not self.step:
            return f"no checkpoint was saved, so the same command begins anew; {self._advice}"
        how = "" if self._resumes else " with trainer.resume_mode=auto"
        return f"the same command{how} goes on after step {self.step}, whose checkpoint is the last"


def keep_records(folder: RunFolder, step: int, *, interrupted: bool = False) -> None:
    """Make a run's records those of its first ``step`` steps; call before verl starts.

    Args:
        interrupted: Whether weights are updated while episodes are played, so that a step's file may hold later ones.
    """
    join_metrics(folder)
    latest = folder.checkpoints / LATEST
    if latest.exists() and not latest.stat().st_size:
        write_whole(latest, str(latest_step(latest) or ""))  # verl reads it, too
    _keep_lines(folder.engine, lambda row: row["step"] <= step)
    _keep_lines(folder.metrics, lambda row: row["step"] <= step)
    for path in [*folder.root.glob("episodes/step_*.jsonl"), *folder.root.glob("weights/step_*.safetensors")]:
        number = re.fullmatch(r"step_(\d+)", path.stem)
        if number is not None and int(number[1]) > step:
            path.unlink()
    for begun in range(1, step + 1) if interrupted else ():
        _keep_lines(folder.episodes(begun), lambda row: _was_sampled_before(row, step))
    _name_lost_row(folder, step)
    folder.table.unlink(missing_ok=True)  # it is written again at the end
    if folder.metrics.exists():
        folder.metrics.replace(folder.earlier_metrics)


def _name_lost_row(folder: RunFolder, step: int) -> None:
    """Warn if verl was killed between saving a step's checkpoint and logging its metrics, which come after it."""
    logged = {json.loads(line)["step"] for line in folder.metrics.open()} if folder.metrics.exists() else set()
    if logged and step not in logged:
        logger.warning(
            "step %d has no row in %s: the run was killed between its checkpoint and its metrics", step, folder.metrics
        )


def join_metrics(folder: RunFolder) -> None:
    """Put the metrics that were moved away before the new ones, if there are any, and write them as a table, too."""
    aside = folder.earlier_metrics
    if aside.exists():
        new = folder.metrics.read_bytes() if folder.metrics.exists() else b""
        write_whole(folder.metrics, aside.read_bytes() + new[: new.rfind(b"\n") + 1])
        aside.unlink()
    _write_table(folder)


def _write_table(folder: RunFolder) -> None:
    """Write the metrics as CSV, a row for each step; what a crash has cut off is left out."""
    steps: dict[int, dict[str, Any]] = {}
    for line in folder.metrics.read_bytes().split(b"\n")[:-1] if folder.metrics.exists() else ():
        with suppress(ValueError, KeyError, TypeError):  # a damaged line must not end a training
            row = json.loads(line)
            steps.setdefault(row["step"], {"step": row["step"]}).update(row.get("data", {}))
    if not steps:
        folder.table.unlink(missing_ok=True)
        return
    names = dict.fromkeys(name for row in steps.values() for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *sorted(names.keys() - {"step"})], lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(steps.items()))
    write_whole(folder.table, text.getvalue())


def _was_sampled_before(record: Mapping[str, Any], step: int) -> bool:
    """Whether no turn of an episode is of the weights that a checkpoint of ``step`` has, or of later ones."""
    return all(turn["completion"].get("weights_version", 0) < step for turn in record["episode"]["turns"])


def _keep_lines(path: Path, keeps: Callable[[Mapping[str, Any]], bool]) -> None:
    """Keep the whole lines that ``keeps`` selects; one cut off by a crash is removed."""
    if not path.exists():
        return
    before = path.read_bytes()
    after = b"".join(line + b"\n" for line in before.split(b"\n")[:-1] if keeps(json.loads(line)))
    if after != before:
        write_whole(path, after)
