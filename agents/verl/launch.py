"""``turntree train``: run an unmodified ``verl.trainer.main_ppo`` in its own process.

verl's process imports verl while the launcher, this process, writes the task rows and the Hydra configuration to the
run folder. On the CPU, Ray's workers are forks of a process that has already imported their packages (``prefork``).

Only one training writes to a run folder at a time: a training holds the folder's lock until its last process has ended.
All processes end with the launcher, even after ``kill -9`` (``guard``).
"""

from __future__ import annotations

import logging
import os
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

from turntree.agents.files import OneWriter
from turntree.agents.verl.config.asynchronous import updates_while_playing
from turntree.agents.verl.config.compose import Composition, compose
from turntree.agents.verl.config.sections import logged_error
from turntree.agents.verl.config.settings import TrainSettings
from turntree.agents.verl.episodes.dataset import make_env
from turntree.agents.verl.records.phases import Phase
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.records.step_checks import first_failure
from turntree.agents.verl.records.step_reports import StepReport
from turntree.agents.verl.run import prefork
from turntree.agents.verl.run.failure_causes import full_disk, kernel_kills, memory_kill
from turntree.agents.verl.run.guard import Guard
from turntree.agents.verl.run.progress import Progress
from turntree.agents.verl.run.resume import Checkpoints, join_metrics, keep_records, resumed_step
from turntree.agents.verl.run.variables import INIT, environment, fit_cluster, hub_variables, joins_cluster
from turntree.agents.verl.start import complete, draw_tasks, find_problems, run_folder

__all__ = ["Phase", "StepReport", "command", "prepare", "train"]

logger = logging.getLogger(__name__)

_EXECUTABLE = f"{INIT}.runtime_env.py_executable"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 8.0  #: time for verl to shut Ray down and close its loggers before verl is killed
_ENDED_SECONDS = 30.0  #: time for a killed launcher's processes to end; the guard ends them within a second
_ENDING = (signal.SIGTERM, signal.SIGHUP)  #: signals that end a training as Ctrl-C does; a closed terminal sends SIGHUP
_LOG_TAIL = 30
_LEARNT_NOTHING = 1  #: exit status of a run whose episodes all failed
#: how a stopped training can continue
SAVING = "with trainer.save_freq=10 trainer.resume_mode=auto it resumes from the last tenth step"
#: Ray's message if its processes are not up after 30 seconds, a limit without a setting
_RAY_WAS_SLOW = "The current node timed out during startup"


def train(
    config: str,
    overrides: Sequence[str] = (),
    *,
    on_step: Callable[[StepReport], None] = lambda report: None,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    advice: str = SAVING,
) -> int:
    """Train with verl and wait for the end.

    Args:
        config: Name of a shipped configuration, or path of a YAML file.
        overrides: ``key=value``, see ``compose``.
        on_phase: Called when a phase begins until the first step has ended, when verl is being stopped, after half a
            minute without news, and at a successful end.
        advice: How to continue a run that is stopped before its first checkpoint, in keys that the command takes.

    Returns:
        verl's exit status: 0 if the training reached its end; 1 if all episodes of two consecutive steps (or of the
        whole run) failed or had no turn.

    Raises:
        ConfigError: If the configuration is wrong.
        UsageError: If another training writes to the folder.
        MissingExtra: If verl is not installed.
        KeyboardInterrupt: After Ctrl-C, once verl and Ray have stopped; the log shows how to continue the run.
        SystemExit: After SIGTERM or SIGHUP, once verl and Ray have stopped.
    """
    composition = compose(config, overrides)
    folder = run_folder(composition)
    if problems := find_problems(composition, folder):
        raise problems[0]
    folder.root.mkdir(parents=True, exist_ok=True)
    instead = "name another folder: turntree.run_dir=FOLDER"
    with closing(OneWriter(folder.root, inherited=_ENDED_SECONDS, instead=instead)) as lock:
        return _train(composition, folder, lock.descriptor, on_step, on_phase, advice)


def _train(
    composition: Composition,
    folder: RunFolder,
    lock: int,
    on_step: Callable[[StepReport], None],
    on_phase: Callable[[Phase], None],
    advice: str,
) -> int:
    step = resumed_step(composition.verl.trainer, folder)
    if step:
        logger.info("the run resumes after step %d", step)
        keep_records(folder, step, interrupted=updates_while_playing(composition.verl.trainer.v1.trainer_mode))
    else:
        folder.clear()
    checkpoints = Checkpoints(composition.verl.trainer, folder, advice)
    tools = partial(_tools, composition.settings)
    progress = Progress(folder, step, composition.verl.trainer.total_training_steps, on_step, on_phase, tools)
    kills = kernel_kills()
    try:
        status = _run_again_if_ray_was_slow(composition, folder, lock, progress)
    except (KeyboardInterrupt, SystemExit):
        logger.error("stopped %s; %s", progress, checkpoints)
        raise
    finally:
        with suppress(OSError):  # a full disk: the next start joins the metrics
            join_metrics(folder)
    if progress.lost.ends_the_run or progress.lost.learnt_nothing:
        logger.error("the training was stopped: %s", progress.lost)
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
    _log_cause(status, killed or logged_error(log), folder, log)
    if killed is None and (first := first_failure(folder, progress.step + 1)):
        logger.error("before that, %s", first)  # the log's last error is seldom the cause
    return status


def _run_again_if_ray_was_slow(composition: Composition, folder: RunFolder, lock: int, progress: Progress) -> int:
    with _ending_on_signals():
        status = _run(composition, folder, lock, progress)
        if status != 0 and _RAY_WAS_SLOW in folder.log.read_text(errors="replace"):
            progress.tell("Ray did not start within its 30 seconds; the machine is busy: trying once more")
            progress.restart()
            status = _run(composition, folder, lock, progress)
    return status


def _tools(settings: TrainSettings) -> list[str]:
    # The names are only for warnings, so an environment that cannot be created now must not end the training.
    try:
        with closing(make_env(settings.env, settings.env_kwargs)) as env:
            return [tool.name for tool in env.offered_tools]
    except Exception:
        logger.warning("the environment could not be created to list its tools", exc_info=True)
        return []


def _log_cause(status: int, cause: str | None, folder: RunFolder, log: str) -> None:
    if cause is not None:
        logger.error("%s; all output of verl is in %s", cause, folder.log)
        return
    tail = "\n".join(log.splitlines()[-_LOG_TAIL:])
    logger.error("verl ended with status %d; the last lines of %s:\n%s", status, folder.log, tail)


def prepare(
    composition: Composition, folder: RunFolder, ray_dir: Path, tell: Callable[[str], None] = logger.info
) -> None:
    """Write the task rows and the final configuration of a run; ``ray_dir`` is for Ray's files."""
    config = composition.verl
    draw_tasks(composition, folder, tell)
    complete(composition, folder)
    if joins_cluster(config):
        fit_cluster(config, _environment(composition, folder))
    else:  # a running cluster already has a folder for Ray's files
        OmegaConf.update(config, f"{INIT}._temp_dir", str(ray_dir), force_add=True)
    socket = fork_socket(composition, ray_dir)
    if socket is not None:
        OmegaConf.update(config, _EXECUTABLE, prefork.py_executable(socket), force_add=True)
    OmegaConf.save(config, folder.config)


def fork_socket(composition: Composition, ray_dir: Path) -> Path | None:
    """Return the fork server's socket; ``None`` if each Ray worker starts its own interpreter.

    Forks cannot inherit an accelerator, and a cluster's workers start on other machines.
    """
    config = composition.verl
    if not composition.settings.fork_workers or config.trainer.device != "cpu" or not hasattr(os, "fork"):
        return None
    socket = ray_dir / "fork"
    ours = OmegaConf.select(config, _EXECUTABLE) in (None, prefork.py_executable(socket))
    return None if not ours or joins_cluster(config) else socket


def command(folder: RunFolder, socket: Path | None) -> list[str]:
    arguments = [
        f"--config-path={folder.root}",
        f"--config-name={folder.config.stem}",
        "hydra.run.dir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]
    return prefork.command(socket, arguments)


def _run(composition: Composition, folder: RunFolder, lock: int, progress: Progress) -> int:
    # Ray's sockets are in its folder, and a socket's path has about 100 characters at most.
    ray_dir = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp" if os.path.isdir("/tmp") else None))
    with folder.log.open("wb") as log, Guard(ray_dir, inherited=lock) as guard:
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
            guard.watch(process.pid)
            progress.tell("writing the tasks, importing verl")
            prepare(composition, folder, ray_dir, progress.tell)
            _release(process)
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
                with suppress(OSError):  # a closed terminal
                    progress.tell("stopping verl and Ray")
            _stop(process)
            raise


def _environment(composition: Composition, folder: RunFolder) -> dict[str, str]:
    settings, config = composition.settings, composition.verl
    names = (settings.env, *settings.rewards, *_programs(settings.env_kwargs))
    variables = environment(folder, config.trainer.device, names, joins=joins_cluster(config))
    return hub_variables(config.actor_rollout_ref.model.path) | variables


def _programs(env_kwargs: Mapping[str, Any]) -> list[str]:
    # Environment settings that name code as ``MODULE:NAME``: a program, its tasks' environment, its rewards.
    named = [env_kwargs.get("program"), env_kwargs.get("env"), *(env_kwargs.get("rewards") or ())]
    return [name for name in named if isinstance(name, str) and ":" in name]


def _release(process: subprocess.Popen[bytes]) -> None:
    # verl's process waits in ``prefork`` for a line. If the process has already ended, the log has its error.
    assert process.stdin is not None, "started with a pipe"
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(b"\n")


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    # SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that they stop verl and Ray, too.
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP; leave that so
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[bytes]) -> None:
    # verl's driver shuts Ray down; a second Ctrl-C ends the wait. The guard kills the remaining processes.
    with suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_GRACE_SECONDS)
