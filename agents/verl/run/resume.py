"""Resume a run from a checkpoint: find its step and choose the records to keep.

Records of later steps are removed, because the resumed run writes them again. In an asynchronous training, an episode
that began before the checkpoint may have ended with later weights, or later weights may have re-verified the episode
(drawn its turns again with the same seeds). Such episodes are removed, too. verl empties its metrics file at the start.
The old rows are therefore moved away first, and joined with the new rows at the end, or at the next start if the run
was killed.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turntree.agents.files import write_whole
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.records.recording import RunFolder

logger = logging.getLogger(__name__)

LATEST = "latest_checkpointed_iteration.txt"  #: file with the last step; verl writes it when a checkpoint is complete


def checkpoints_of(trainer: Mapping[str, Any], folder: RunFolder) -> Path:
    """Return the folder of the checkpoints that a run resumes from; ``trainer`` is verl's section."""
    path = resume_path(trainer)
    return folder.checkpoints if path is None else Path(path).parent


def resume_path(trainer: Mapping[str, Any]) -> str | None:
    """Return the absolute path of the checkpoint that the configuration names, if any."""
    if trainer["resume_mode"] != "resume_path":
        return None
    path = trainer["resume_from_path"]
    if not isinstance(path, str):
        raise ConfigError(f"trainer.resume_mode=resume_path needs trainer.resume_from_path=FOLDER, got {path!r}")
    return str(Path(path).absolute())


def resumed_step(trainer: Mapping[str, Any], folder: RunFolder) -> int:
    """Return the step after which the run resumes; 0 for a new run."""
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
            f"{latest} should hold the number of a step, got {text[:40]!r}; write the number of a folder global_step_N "
            "beside it, or set trainer.resume_mode=disable"
        )
    return step


def latest_step(latest: Path) -> int | None:
    """Return the step in verl's file ``LATEST``; ``None`` if the file does not hold a step.

    verl writes this file after the checkpoint. A full disk leaves it empty; the newest checkpoint is then complete.
    """
    text = latest.read_text(encoding="utf-8").strip()
    if not text:
        numbers = [path.name.removeprefix("global_step_") for path in latest.parent.glob("global_step_*")]
        return max((int(number) for number in numbers if number.isdigit()), default=None)
    return int(text) if text.isdigit() else None


def remove_halves(checkpoints: Path, step: int, earlier: frozenset[str]) -> None:
    """Remove unfinished checkpoints: those after ``step``, the last complete one; keep an ``earlier`` run's folders."""
    # verl writes a checkpoint's folder first and the step into ``LATEST`` last. ``step`` is 0 without a checkpoint.
    if step and not (checkpoints / f"global_step_{step}" / "actor").is_dir():
        return  # verl had removed that checkpoint already, so the unfinished folder may be needed
    for path in sorted(checkpoints.glob("global_step_*")):
        number = path.name.removeprefix("global_step_")
        if path.name not in earlier and number.isdigit() and int(number) > step:
            shutil.rmtree(path, ignore_errors=True)


class Checkpoints:
    """Describe how to continue a stopped run."""

    def __init__(self, trainer: Mapping[str, Any], folder: RunFolder, advice: str) -> None:
        self._advice = advice
        self._resumes = trainer["resume_mode"] == "auto"
        self._latest = folder.checkpoints / LATEST
        self._earlier = None if self._resumes else self._stamp  # of a run that is not this one
        self._folder = folder.checkpoints
        self._present = frozenset(path.name for path in self._folder.glob("global_step_*"))

    @property
    def _stamp(self) -> int | None:
        return self._latest.stat().st_mtime_ns if self._latest.exists() else None

    @property
    def step(self) -> int:
        """Return the step of this run's last complete checkpoint, 0 without one."""
        if self._stamp is None or self._stamp == self._earlier:
            return 0
        return latest_step(self._latest) or 0

    def remove_halves(self) -> None:
        remove_halves(self._folder, self.step, self._present)

    def __str__(self) -> str:
        if not self.step:
            return f"no checkpoint was saved, so the same command starts over; {self._advice}"
        how = "" if self._resumes else " with trainer.resume_mode=auto"
        return f"the same command{how} resumes after step {self.step}, the last checkpoint"


def keep_records(folder: RunFolder, step: int, *, interrupted: bool = False) -> None:
    """Cut a run's records to its first ``step`` steps; call before verl starts.

    Args:
        interrupted: Whether weights change during episodes. A step's file may then contain episodes of later weights.
    """
    join_metrics(folder)
    latest = folder.checkpoints / LATEST
    if latest.exists() and not latest.stat().st_size:
        write_whole(latest, str(latest_step(latest) or ""))  # verl reads this file and would fail
    _keep_lines(folder.engine, lambda row: row["step"] <= step)
    _keep_lines(folder.metrics, lambda row: row["step"] <= step)
    for path in [*folder.root.glob("episodes/step_*.jsonl"), *folder.root.glob("weights/step_*.safetensors")]:
        saved = re.fullmatch(r"step_(\d+)", path.stem)
        if saved is not None and int(saved[1]) > step:
            path.unlink()
    for number in range(1, step + 1) if interrupted else ():
        _keep_lines(folder.episodes(number), lambda row: _was_sampled_before(row, step))
    # verl logs a step's metrics only after the step's checkpoint, and may have been killed in between.
    logged = {json.loads(line)["step"] for line in folder.metrics.open()} if folder.metrics.exists() else set()
    if logged and step not in logged:
        logger.warning(
            "step %d has no row in %s: the run was killed between the checkpoint and the metrics", step, folder.metrics
        )
    folder.table.unlink(missing_ok=True)  # written again when the training ends
    if folder.metrics.exists():
        folder.metrics.replace(folder.earlier_metrics)


def join_metrics(folder: RunFolder) -> None:
    """Join the metrics that were moved away with the new metrics, and write all metrics as a table, too."""
    earlier = folder.earlier_metrics
    if earlier.exists():
        new = folder.metrics.read_bytes() if folder.metrics.exists() else b""
        # Drop the last line if a crash cut it off.
        write_whole(folder.metrics, earlier.read_bytes() + new[: new.rfind(b"\n") + 1])
        earlier.unlink()
    _write_table(folder)


def _write_table(folder: RunFolder) -> None:
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
    # Whether only weights from before the checkpoint of ``step`` sampled the episode.
    return all(turn["completion"].get("weights_version", 0) < step for turn in record["episode"]["turns"])


def _keep_lines(path: Path, keeps: Callable[[Mapping[str, Any]], bool]) -> None:
    if not path.exists():
        return
    before = path.read_bytes()
    after = b"".join(line + b"\n" for line in before.split(b"\n")[:-1] if keeps(json.loads(line)))
    if after != before:
        write_whole(path, after)
