"""``turntree train``: run an unmodified ``verl.trainer.main_ppo`` in a child process.

While the child process imports verl, this process writes the configuration and the environment's rows to the run's
folder. Hydra reads that configuration unchanged. On the CPU, Ray's workers are forks of a process that has already
imported their modules (``prefork``). Ray's files are in a temporary folder with a short path, removed at the end.

Only one training at a time writes to a folder. The training holds the folder's lock until its last process has ended.
If this process ends, even by ``kill -9``, ``guard`` ends all processes of the training.
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
from turntree.agents.verl.run.full_disk import full_disk
from turntree.agents.verl.run.guard import Guard
from turntree.agents.verl.run.memory_kills import kernel_kills, memory_kill
from turntree.agents.verl.run.progress import Progress
from turntree.agents.verl.run.resume import Checkpoints, join_metrics, keep_records, resumed_step
from turntree.agents.verl.run.variables import INIT, environment, fit_cluster, hub_variables, joins_cluster
from turntree.agents.verl.start import complete, draw_tasks, find_problems, run_folder

__all__ = ["Phase", "StepReport", "command", "prepare", "train"]

logger = logging.getLogger(__name__)

_EXECUTABLE = f"{INIT}.runtime_env.py_executable"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 8.0
"""Time that verl gets to shut Ray down and to close its loggers, before both are killed."""
_LOCK_SECONDS = 30.0
"""Time that the processes of an earlier training get to end after its launcher was killed; ``guard`` is faster."""
_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a training as Ctrl-C does. A terminal sends SIGHUP when it is closed."""
_LOG_TAIL = 30
_STATUS_NOTHING_LEARNT = 1
"""Exit status of a run whose episodes all failed."""
SAVING = "trainer.save_freq=10 trainer.resume_mode=auto saves every tenth step and resumes from the last one saved"
"""Advice on how to resume a stopped training."""
_RAY_TIMEOUT = "The current node timed out during startup"
"""Ray's message when its processes have not started after 30 seconds; Ray has no setting for this limit."""


def train(
    config: str,
    overrides: Sequence[str] = (),
    *,
    on_step: Callable[[StepReport], None] = lambda report: None,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    advice: str = SAVING,
) -> int:
    """Run a training, and wait until it ends.

    Args:
        config: Name of a shipped configuration, or path of a YAML file.
        overrides: ``key=value``, see ``compose``.
        on_phase: Called at the start of each phase until the first step ends, when verl is being stopped, and when
            verl ends successfully. After 30 seconds without news, called with the current activity.
        advice: Logged if the run is stopped before its first checkpoint: how to resume, as keys for the command.

    Returns:
        verl's exit status, 0 if the training is complete. 1 if turntree stopped the training because no episode of two
        consecutive steps, or of the whole run, could be trained on: each had failed or had no turn of the policy.

    Raises:
        ConfigError: If the configuration is wrong.
        UsageError: If another training writes to the folder.
        MissingExtra: If verl is not installed.
        KeyboardInterrupt: After Ctrl-C, once verl and Ray have stopped. The log says how to resume the run.
        SystemExit: After SIGTERM or SIGHUP, once verl and Ray have stopped.
    """
    composition = compose(config, overrides)
    folder = run_folder(composition)
    if problems := find_problems(composition, folder):
        raise problems[0]
    folder.root.mkdir(parents=True, exist_ok=True)
    instead = "name another folder: turntree.run_dir=FOLDER"
    with closing(OneWriter(folder.root, inherited=_LOCK_SECONDS, instead=instead)) as lock:
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
    lost = progress.lost
    kills = kernel_kills()
    try:
        with _exiting_on_signals():
            status = _run(composition, folder, lock, progress)
            if status != 0 and _RAY_TIMEOUT in folder.log.read_text(errors="replace"):
                progress.tell("Ray did not start within its 30 seconds; the machine is busy: trying once more")
                progress.restart()
                status = _run(composition, folder, lock, progress)
    except (KeyboardInterrupt, SystemExit):
        logger.error("stopped %s; %s", progress, checkpoints)
        raise
    finally:
        with suppress(OSError):  # the disk may be full; the next start joins the metrics
            join_metrics(folder)
    if lost.ends_the_run or lost.learnt_nothing:
        logger.error("the training was stopped: %s", lost)
        return status or _STATUS_NOTHING_LEARNT
    if status == 0:
        progress.tell(f"done; the episodes: turntree view {folder.root}")
        return status
    log = folder.log.read_text(errors="replace")
    if (full := full_disk(log, folder.root)) is not None:
        checkpoints.remove_halves()
        logger.error("%s; %s", full, checkpoints)
        return status
    killed = memory_kill(log, composition.verl, by_kernel=kernel_kills() > kills)
    _log_error(status, killed or logged_error(log), folder, log)
    if killed is None and (first := first_failure(folder, progress.step + 1)):
        logger.error("before that, %s", first)  # later failures are seldom the cause
    return status


def _tools(settings: TrainSettings) -> list[str]:
    """Return the names of the environment's tools; none if the environment cannot be created now."""
    try:
        with closing(make_env(settings.env, settings.env_kwargs)) as env:
            return [tool.name for tool in env.offered_tools]
    except Exception:  # must not end the training
        logger.warning("cannot list the environment's tools", exc_info=True)
        return []


def _log_error(status: int, why: str | None, folder: RunFolder, log: str) -> None:
    """Log the error that ended verl, or the last lines of verl's output if the error is unknown."""
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
        ray_dir: Folder for Ray's files, unless the run joins a running Ray cluster.
        tell: Called with a message if the environment has fewer tasks than a training uses by default.

    Raises:
        ConfigError: See ``draw_tasks``.
    """
    config = composition.verl
    draw_tasks(composition, folder, tell)
    complete(composition, folder)
    if joins_cluster(config):
        fit_cluster(config, _environment(composition, folder))
    else:  # a running cluster has its own folder
        OmegaConf.update(config, f"{INIT}._temp_dir", str(ray_dir), force_add=True)
    socket = fork_socket(composition, ray_dir)
    if socket is not None:
        OmegaConf.update(config, _EXECUTABLE, prefork.py_executable(socket), force_add=True)
    OmegaConf.save(config, folder.config)


def fork_socket(composition: Composition, ray_dir: Path) -> Path | None:
    """Return the socket of the server that forks Ray's workers; ``None`` if each worker starts a new interpreter.

    Forks cannot inherit an accelerator, and on a running cluster workers start on other machines.
    """
    config = composition.verl
    if not composition.settings.fork_workers or config.trainer.device != "cpu" or not hasattr(os, "fork"):
        return None
    socket = ray_dir / "fork"
    is_default = OmegaConf.select(config, _EXECUTABLE) in (None, prefork.py_executable(socket))
    return None if not is_default or joins_cluster(config) else socket


def command(folder: RunFolder, socket: Path | None) -> list[str]:
    """Return the command line of a run."""
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
    # Ray keeps its sockets in this folder, and the path of a socket is limited to about 100 characters.
    ray_dir = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp" if os.path.isdir("/tmp") else None))
    with folder.log.open("wb") as log, Guard(ray_dir, holding=lock) as guard:
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
                    return _STATUS_NOTHING_LEARNT
            progress.look()
            return status
        except BaseException:
            if process.poll() is None:
                with suppress(OSError):  # the terminal may be closed
                    progress.tell("stopping verl and Ray")
            _stop(process)
            raise


def _environment(composition: Composition, folder: RunFolder) -> dict[str, str]:
    settings, config = composition.settings, composition.verl
    names = (settings.env, *settings.rewards, *_programs(settings.env_kwargs))
    variables = environment(folder, config.trainer.device, names, joins=joins_cluster(config))
    return hub_variables(config.actor_rollout_ref.model.path) | variables


def _programs(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Return all ``MODULE:NAME`` among the settings: the program, the environment of its tasks, and the rewards."""
    named = [env_kwargs.get("program"), env_kwargs.get("env"), *(env_kwargs.get("rewards") or ())]
    return [name for name in named if isinstance(name, str) and ":" in name]


def _release(process: subprocess.Popen[bytes]) -> None:
    """Send the line that ``prefork`` waits for. If the process has already ended, the log has its error."""
    assert process.stdin is not None, "started with a pipe"
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(b"\n")


@contextmanager
def _exiting_on_signals() -> Iterator[None]:
    """Raise ``SystemExit`` on SIGTERM and SIGHUP, so that the stack is unwound, and verl and Ray are stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _EXIT_SIGNALS}
    for number in _EXIT_SIGNALS:
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt verl, so that verl's driver shuts Ray down, and wait. A second Ctrl-C ends the wait.

    The guard ends the remaining processes.
    """
    with suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_GRACE_SECONDS)
