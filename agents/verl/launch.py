"""``turntree train``: an unmodified ``verl.trainer.main_ppo`` in a process of its own.

verl is imported there while the configuration, passed to Hydra as it is, and the rows of the environment are
written to the run's folder here. On the CPU Ray's workers are forks of a process that has imported what they need
(``prefork``). Ray's files are in a short temporary folder that is removed afterwards.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from turntree.agents.loop.rollout import PlaysItself
from turntree.agents.scoring.scorer import ANSWER
from turntree.agents.verl.config.asynchronous import updates_while_playing
from turntree.agents.verl.config.compose import Composition, compose
from turntree.agents.verl.config.sections import ConfigError, logged_error
from turntree.agents.verl.config.settings import TrainSettings, make_scorer
from turntree.agents.verl.config.sizes import check_sizes, check_tasks
from turntree.agents.verl.episodes.dataset import MOST_TASKS, make_env, write_rows
from turntree.agents.verl.records.lost_steps import first_failure
from turntree.agents.verl.records.phases import Phase
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.records.step_reports import StepReport
from turntree.agents.verl.run import prefork
from turntree.agents.verl.run.full_disk import full_disk
from turntree.agents.verl.run.memory_kills import kernel_kills, memory_kill
from turntree.agents.verl.run.progress import Progress
from turntree.agents.verl.run.resume import (
    Checkpoints,
    checkpoints_of,
    join_metrics,
    keep_records,
    resume_path,
    resumed_step,
)
from turntree.agents.verl.run.variables import INIT, environment, fit_cluster, hub_variables, joins_cluster
from turntree.rewards import UnknownContract

__all__ = ["Phase", "StepReport", "command", "prepare", "train"]

logger = logging.getLogger(__name__)

_EXECUTABLE = f"{INIT}.runtime_env.py_executable"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 20.0
_LOG_TAIL = 30
_LEARNT_NOTHING = 1
"""Exit status of a run whose episodes all failed."""
SAVING = "with trainer.save_freq=10 trainer.resume_mode=auto it goes on from the last of every tenth step"
"""How a training goes on after it was stopped."""
_RAY_WAS_SLOW = "The current node timed out during startup"
"""Ray's message when its processes are not up after 30 seconds, a limit without a setting."""


def train(
    config: str,
    overrides: Sequence[str] = (),
    *,
    on_step: Callable[[StepReport], None] = lambda report: None,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    advice: str = SAVING,
) -> int:
    """Train, and wait for the end.

    Args:
        config: Name of a shipped configuration, or path of a YAML file.
        overrides: ``key=value``, see ``compose``.
        on_phase: Called when a phase begins, until the first step has ended; when verl is being stopped; with what goes
            on after half a minute without news; and at a good end.
        advice: How a run that is stopped before its first checkpoint goes on, in keys that the command takes.

    Returns:
        Exit status of verl: 0 if it trained to the end. 1 if it was ended because every episode of two consecutive
        steps failed or the policy had no turn in them, or of all its steps.

    Raises:
        ConfigError: If the configuration is wrong.
        MissingExtra: If verl is not installed.
        KeyboardInterrupt: After Ctrl-C, once verl and Ray are stopped; how the run goes on is logged.
        SystemExit: After SIGTERM, likewise.
    """
    composition = compose(config, overrides)
    check_sizes(composition.verl, composition.settings)
    hub_variables(composition.verl.actor_rollout_ref.model.path)  # a model that cannot be had is found out now
    folder = RunFolder(Path(composition.settings.run_dir).absolute())
    folder.root.mkdir(parents=True, exist_ok=True)
    step = resumed_step(composition.verl.trainer, folder)
    if step:
        logger.info("the run resumes after step %d", step)
        keep_records(folder, step, overtaken=updates_while_playing(composition.verl.trainer.v1.trainer_mode))
    else:
        folder.clear()
    # Ray's sockets are in its folder, and a socket's path has about 100 characters at most.
    ray_dir = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp" if os.path.isdir("/tmp") else None))
    checkpoints = Checkpoints(composition.verl.trainer, folder, advice)
    tools = partial(_tools, composition.settings)
    progress = Progress(folder, step, composition.verl.trainer.total_training_steps, on_step, on_phase, tools)
    lost = progress.lost
    kills = kernel_kills()
    try:
        with _ending_on_sigterm():
            status = _run(composition, folder, ray_dir, progress)
            if status != 0 and _RAY_WAS_SLOW in folder.log.read_text(errors="replace"):
                progress.tell("Ray did not start within its 30 seconds; the machine is busy: trying once more")
                progress.restart()
                status = _run(composition, folder, ray_dir, progress)
    except (KeyboardInterrupt, SystemExit):
        logger.error("stopped %s; %s", progress, checkpoints)
        raise
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
        with suppress(OSError):  # of a full disk: they are joined at the next start
            join_metrics(folder)
    if lost.ends_the_run or lost.learnt_nothing:
        logger.error("the training was stopped: %s", lost)
        return status or _LEARNT_NOTHING
    if status == 0:
        progress.tell(f"done; the episodes: turntree view {folder.root}")
        return status
    log = folder.log.read_text(errors="replace")
    if (full := full_disk(log, folder.root)) is not None:
        checkpoints.remove_halves()
        logger.error("%s; %s", full, checkpoints)
        return status
    killed = memory_kill(log, composition.verl, by_kernel=kernel_kills() > kills)
    _say_why(status, killed or logged_error(log), folder, log)
    if killed is None and (first := first_failure(folder, progress.step + 1)):
        logger.error("before that, %s", first)  # what followed is seldom the cause
    return status


def _tools(settings: TrainSettings) -> list[str]:
    """Names of the environment's tools; none if it cannot be made now, which must not end a training."""
    try:
        with closing(make_env(settings.env, settings.env_kwargs)) as env:
            return [tool.name for tool in env.offered_tools]
    except Exception:
        logger.warning("the environment's tools are not known", exc_info=True)
        return []


def _say_why(status: int, why: str | None, folder: RunFolder, log: str) -> None:
    """Name the error that verl ended with, or show the end of its output if none is known."""
    if why is not None:
        logger.error("%s; all output of verl is in %s", why, folder.log)
        return
    tail = "\n".join(log.splitlines()[-_LOG_TAIL:])
    logger.error("verl ended with status %d; the last lines of %s:\n%s", status, folder.log, tail)


def prepare(
    composition: Composition, folder: RunFolder, ray_dir: Path, tell: Callable[[str], None] = logger.info
) -> None:
    """Write the rows and the final configuration of a run.

    Args:
        ray_dir: Folder for Ray's files, if it is started for this run.
        tell: Called with a line if the environment has fewer tasks than a training takes by default.

    Raises:
        ConfigError: If the environment has fewer tasks than a step takes, answers of a data set are to be compared and
            there are no rules for it, or programs are to be run ahead.
    """
    settings, config = composition.settings, composition.verl
    if settings.run_ahead.enabled and isinstance(make_env(settings.env, settings.env_kwargs), PlaysItself):
        raise ConfigError(f"{settings.env} runs programs, and run-ahead would run them for nothing; leave out runahead")
    val_kwargs = {**settings.env_kwargs, **settings.val_env_kwargs}
    train_rows, val_rows = folder.rows("train"), folder.rows("val")
    train_tasks = write_rows(train_rows, settings.env, settings.env_kwargs, count=settings.train_tasks, split="train")
    if settings.train_tasks is None:
        check_tasks(config, train_tasks)
    val_tasks = write_rows(val_rows, settings.env, val_kwargs, count=settings.val_tasks, split="val")
    if (settings.train_tasks is None and train_tasks < MOST_TASKS["train"]) or (
        settings.val_tasks is None and val_tasks < MOST_TASKS["val"]
    ):
        tell(f"the environment has few tasks: turntree.train_tasks={train_tasks} turntree.val_tasks={val_tasks}")
    _check_contracts(settings, (train_rows, val_rows))
    for key, value in {
        "data.train_files": str(train_rows),
        "data.val_files": str(val_rows),
        "actor_rollout_ref.rollout.custom.turntree": {
            **settings.played(),
            "run_dir": str(folder.root),
            "checkpoint_dir": str(checkpoints_of(config.trainer, folder)),
        },
        "trainer.default_local_dir": str(folder.checkpoints),
        "trainer.resume_from_path": resume_path(config.trainer),
    }.items():
        OmegaConf.update(config, key, value, force_add=True)
    if joins_cluster(config):
        fit_cluster(config, _environment(composition, folder))
    else:  # a running cluster has its own folder
        OmegaConf.update(config, f"{INIT}._temp_dir", str(ray_dir), force_add=True)
    socket = fork_socket(composition, ray_dir)
    if socket is not None:
        OmegaConf.update(config, _EXECUTABLE, prefork.py_executable(socket), force_add=True)
    OmegaConf.save(config, folder.config)


def fork_socket(composition: Composition, ray_dir: Path) -> Path | None:
    """Socket of the server whose forks are Ray's workers; ``None`` if each worker starts its own interpreter.

    Forks cannot inherit an accelerator, and on a running cluster workers start on other machines.
    """
    config = composition.verl
    if not composition.settings.fork_workers or config.trainer.device != "cpu" or not hasattr(os, "fork"):
        return None
    socket = ray_dir / "fork"
    ours = OmegaConf.select(config, _EXECUTABLE) in (None, prefork.py_executable(socket))
    return None if not ours or joins_cluster(config) else socket


def _check_contracts(settings: TrainSettings, files: Sequence[Path]) -> None:
    """Check that there are rules to compare the answers of every data set, if they are compared."""
    scorer = make_scorer(settings.rewards, settings.contract)
    if scorer is None or ANSWER not in scorer.names:
        return
    import pyarrow.parquet

    for path in files:
        for source in pyarrow.parquet.read_table(path, columns=["data_source"])["data_source"].unique().to_pylist():
            try:
                scorer.contract_of(source)
            except UnknownContract as error:
                raise ConfigError(f"{error}: turntree.contract=math") from error


def command(folder: RunFolder, socket: Path | None) -> list[str]:
    """The command line of a run."""
    arguments = [
        f"--config-path={folder.root}",
        f"--config-name={folder.config.stem}",
        "hydra.run.dir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]
    return prefork.command(socket, arguments)


def _run(
    composition: Composition,
    folder: RunFolder,
    ray_dir: Path,
    progress: Progress,
) -> int:
    with folder.log.open("wb") as log:
        process = subprocess.Popen(
            command(folder, fork_socket(composition, ray_dir)),
            cwd=folder.root,
            env=_environment(composition, folder),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            progress.tell("writing the tasks, importing verl")
            prepare(composition, folder, ray_dir, progress.tell)
            _let_go(process)
            while True:
                try:
                    status = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress.look()
                if progress.lost.ends_the_run:
                    _stop(process)
                    return _LEARNT_NOTHING
            progress.look()
            return status
        except BaseException:
            if process.poll() is None:
                progress.tell("stopping verl and Ray")
            _stop(process)
            raise


def _environment(composition: Composition, folder: RunFolder) -> dict[str, str]:
    settings, config = composition.settings, composition.verl
    names = (settings.env, *settings.rewards, *_programs(settings.env_kwargs))
    found = environment(folder, config.trainer.device, names, joins=joins_cluster(config))
    return hub_variables(config.actor_rollout_ref.model.path) | found


def _programs(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Programs, and environments that they have the tasks of, among an environment's settings: ``MODULE:NAME``."""
    named = [env_kwargs.get("program"), env_kwargs.get("env"), *(env_kwargs.get("rewards") or ())]
    return [name for name in named if isinstance(name, str) and ":" in name]


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Send the line that ``prefork`` waits for; a process that has ended already has its error in the log."""
    assert process.stdin is not None, "started with a pipe"
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(b"\n")


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that verl and Ray are stopped by both."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End verl: an interrupt lets its driver shut Ray down, and Ray's processes die with the driver. Who does not want
    to wait for that interrupts again."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(_GRACE_SECONDS)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
