"""Find a training's checkpoint by ``RUN@STEP``, and merge its shards into one model with verl's merger.

Merged models are cached. Invariant: the cache holds a merged model completely or not at all, and the model's name
changes with the checkpoint's files. Not supported: LoRA adapters, and Megatron's checkpoints.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from turntree.agents.errors import MissingExtra
from turntree.agents.evaluation.checkpoint import CheckpointError, check_weights
from turntree.agents.files import lock_file
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run.resume import LATEST, latest_step
from turntree.envs.data.rows import cache_folder

ALL = "all"  #: in place of a step: every complete checkpoint
_FOLDER = re.compile(r"global_step_(\d+)")


class TrainedModel(NamedTuple):
    run: Path
    step: int
    actor: Path  #: the folder of verl's actor

    @property
    def name(self) -> str:
        """Return ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    @property
    def digest(self) -> str:
        """Return a digest of the checkpoint's path and its files' sizes and modification times."""
        parts = blake2b(str(self.actor.resolve()).encode(), digest_size=12)
        files = [*self.actor.glob("model_*.pt"), *self.actor.glob("*.json"), *self.actor.glob("huggingface/*")]
        for path in sorted(files):
            status = path.stat()
            parts.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return parts.hexdigest()


def trained_models(name: str) -> list[TrainedModel]:
    """Return the checkpoints that a model's name selects; an empty list if the name is not a run.

    Args:
        name: ``RUN`` (a run's folder) for the last complete checkpoint, ``RUN@STEP``, or ``RUN@all``. ``RUN`` may also
            be the run's folder of checkpoints. A checkpoint's folder, or its folder ``actor``, means ``RUN@STEP``.

    Raises:
        CheckpointError: If the run has no such checkpoint, or the checkpoint is incomplete.
    """
    path, asked = Path(name), ""
    if not path.exists():
        folder, _, asked = name.rpartition("@")
        path = Path(folder)
        if not folder or not path.is_dir():
            return []
        if asked != ALL and not asked.isdecimal():
            raise CheckpointError(f"{name}: expected RUN@STEP, STEP a checkpoint's number, or RUN@all, got {asked!r}")
    elif not path.is_dir() or (path / "config.json").is_file():
        return []
    if path.name == "actor":
        path = path.parent
    if (number := _FOLDER.fullmatch(path.name)) is not None:
        path, asked = path.parent, number[1]
    # From here on ``path`` is the run's folder, or the run's folder of checkpoints.
    inside = RunFolder(path)
    checkpoints = inside.checkpoints if inside.checkpoints.is_dir() else path
    run = path.parent if path.name == inside.checkpoints.name else path
    found = {int(saved[1]): path for path in checkpoints.glob("*") if (saved := _FOLDER.fullmatch(path.name))}
    if not found and not asked and not inside.config.exists() and checkpoints == path:
        return []
    models = {step: TrainedModel(run, step, folder / "actor") for step, folder in sorted(found.items())}
    return _chosen(run, models, asked, checkpoints / LATEST)


def _chosen(run: Path, models: Mapping[int, TrainedModel], asked: str, latest: Path) -> list[TrainedModel]:
    last = latest_step(latest) if latest.is_file() else None
    lacking = {step: why for step, model in models.items() if (why := _lacks(model, last))}
    complete = [model for step, model in models.items() if step not in lacking]
    steps = (
        f"complete ones: step {', '.join(str(model.step) for model in complete)}" if complete else "none is complete"
    )
    if not models:
        raise CheckpointError(f"{run} has no checkpoint; train with trainer.save_freq=10 to save every tenth step")
    if asked.isdecimal():
        if int(asked) not in models:
            raise CheckpointError(f"{run} has no checkpoint of step {asked}; {steps}")
        if int(asked) in lacking:
            raise CheckpointError(f"the checkpoint {run}@{asked} is incomplete: {lacking[int(asked)]}; {steps}")
        return [models[int(asked)]]
    if not complete:
        reasons = "; ".join(f"step {step}: {why}" for step, why in lacking.items())
        raise CheckpointError(f"{run} has no complete checkpoint: {reasons}")
    return complete if asked == ALL else complete[-1:]


def _lacks(model: TrainedModel, last: int | None) -> str:
    # Return why a checkpoint is incomplete; empty if the checkpoint is complete.
    try:
        settings = json.loads((model.actor / "fsdp_config.json").read_text(encoding="utf-8"))
        ranks = range(settings["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{model.actor}/fsdp_config.json is missing or cut off"
    weights = [f"model_world_size_{len(ranks)}_rank_{rank}.pt" for rank in ranks]
    missing = [name for name in (*weights, "huggingface/config.json") if not (model.actor / name).is_file()]
    if missing:
        return f"{model.actor}/{missing[0]} is missing"
    # If the step is after the last step that verl completed, verl was stopped while it wrote the files.
    late = last is not None and model.step > last
    return f"the last checkpoint that verl completed is of step {last}" if late else ""


def merged(model: TrainedModel, tell: Callable[[str], object] = lambda words: None) -> Path:
    """Return the model's folder in transformers' format, merged now or found in the cache."""
    folder = cache_folder() / "checkpoints" / model.digest
    if folder.is_dir():
        return folder
    if (model.actor / "lora_train_meta.json").exists():
        raise CheckpointError(
            f"{model.name} is a LoRA adapter, which is not supported here; merge it into its model with peft "
            "(merge_and_unload) and name that folder"
        )
    if find_spec("verl") is None:
        raise MissingExtra("reading a checkpoint of verl", "train")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            locked = lock_file(lock.fileno(), fcntl.LOCK_EX) is None
            if not folder.is_dir():  # another process may have merged the model meanwhile
                tell(f"merging {model.name} into {folder}, once")
                _merge(model, folder, locked=locked)
    except OSError as error:
        raise CheckpointError(
            f"cannot write a model to {folder}: {error.strerror or error}; TURNTREE_CACHE names another folder"
        ) from error
    return folder


def _merge(model: TrainedModel, folder: Path, *, locked: bool) -> None:
    # Remove files of a killed process. Without the lock, the files may belong to a process that is still merging.
    for leftover in folder.parent.glob(f".merging-{folder.name}-*") if locked else ():
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".merging-{folder.name}-", dir=folder.parent))
    try:
        done = subprocess.run(
            merger_command(model.actor, partial),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "it printed nothing")
            raise CheckpointError(f"verl's merger cannot read {model.name} ({model.actor}): {last.strip()}")
        check_weights(partial)
        (partial / "checkpoint.json").write_text(
            json.dumps({"run": str(model.run.resolve()), "step": model.step}) + "\n"
        )
        if locked or not folder.is_dir():
            os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def merger_command(actor: Path, target: Path) -> list[str]:
    words = ("-m", "verl.model_merger", "merge", "--backend", "fsdp")
    return [sys.executable, *words, "--local_dir", str(actor), "--target_dir", str(target)]
