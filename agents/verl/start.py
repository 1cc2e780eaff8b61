"""Check a training before verl starts: in ``turntree train``, ``turntree train --check`` and ``doctor --config``.

Not checked: conditions that need GPUs or other nodes, and errors that only a running verl finds.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from omegaconf import DictConfig, OmegaConf

from turntree.agents.errors import AgentError
from turntree.agents.loop.rollout import PlaysItself
from turntree.agents.scoring.scorer import ANSWER
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.asynchronous import SEPARATE
from turntree.agents.verl.config.compose import Composition, compose, verl_defaults
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings, TrainSettings, make_scorer
from turntree.agents.verl.config.sizes import check_tasks, epoch_steps, size_checks
from turntree.agents.verl.episodes.dataset import MOST_TASKS, make_env, write_rows
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run.resume import checkpoints_of, resume_path, resumed_step
from turntree.agents.verl.run.variables import hub_variables, joins_cluster
from turntree.envs.errors import EnvError
from turntree.rewards import RewardError, UnknownAnswerFormat

logger = logging.getLogger(__name__)

Problem: TypeAlias = AgentError | EnvError | RewardError  # errors whose message is one line for the user
_PROBLEMS = (AgentError, EnvError, RewardError)


class Tasks(NamedTuple):
    train: int
    val: int


class Start(NamedTuple):
    """A composed training and whether it can start now."""

    composition: Composition
    problems: tuple[Problem, ...]  #: all errors; ``train`` raises the first
    tasks: Tasks | None  #: numbers of tasks; ``None`` if the tasks cannot be created
    changed: tuple[str, ...]  #: the differences from verl's defaults, as ``key=value``
    resumed: int  #: step after which the run resumes, 0 for a new run

    def summary(self) -> Iterator[str]:
        """Describe the training in a few lines."""
        choice, settings, config = self.composition.choice, self.composition.settings, self.composition.verl
        options = [f"{group}={name}" for group, name in choice.options if group != "speculation"]
        yield f"options: {' '.join(options)} speculation=[{','.join(choice.speculation)}]"
        tasks = self.tasks
        drawn = f"; {tasks.train:,} tasks to train on, {tasks.val:,} to validate" if tasks else ""
        yield f"environment: {settings.env}{drawn}"
        rollout, batch = config.actor_rollout_ref.rollout, config.data.train_batch_size
        yield f"step: {batch:,} tasks x {rollout.n} samples = {batch * rollout.n:,} rows"
        steps = epoch_steps(config, tasks.train) if tasks else 0
        if steps:
            total = config.trainer.total_training_steps or steps * config.trainer.total_epochs
            whole = f"; {total:,g} steps are {total / steps:.3g} epochs"
            yield f"epoch: {steps:,g} steps, {round(steps * batch * rollout.n):,} rows{whole}"
        yield f"row: {config.data.max_prompt_length} tokens of prompt, {config.data.max_response_length} of response"
        yield f"speculation: {'; '.join(_speculation(config, settings)) or 'none, plain decoding'}"
        where = f"{config.trainer.nnodes} x {config.trainer.n_gpus_per_node} GPUs"
        if config.trainer.v1.trainer_mode == SEPARATE:
            where += f" to train, {rollout.nnodes} x {rollout.n_gpus_per_node} for rollouts"
        cluster = " of a running Ray cluster" if joins_cluster(config) else ""
        yield f"devices: {'CPU' if config.trainer.device == 'cpu' else where}{cluster}"
        resumed = f", resumed after step {self.resumed}" if self.resumed else ""
        yield f"run: {run_folder(self.composition).root}{resumed}"

    def yaml(self) -> str:
        """Return the configuration that verl would get, without the additions for Ray's processes."""
        complete(self.composition, run_folder(self.composition))
        return OmegaConf.to_yaml(self.composition.verl)


def check_start(config: str, overrides: Sequence[str] = ()) -> Start:
    """Compose a training and check whether it can start; start nothing and write nothing to the run's folder."""
    composition = compose(config, overrides)
    folder = run_folder(composition)
    changed = tuple(_changed(plain(composition.verl), verl_defaults()[1]))
    problems, tasks = find_problems(composition, folder), None
    with tempfile.TemporaryDirectory(prefix="tt-") as scratch:
        try:
            tasks = draw_tasks(composition, RunFolder(Path(scratch)))
        except _PROBLEMS as error:
            if str(error) not in map(str, problems):
                problems.append(error)
    resumed = 0 if problems else resumed_step(composition.verl.trainer, folder)
    return Start(composition, tuple(problems), tasks, changed, resumed)


def run_folder(composition: Composition) -> RunFolder:
    return RunFolder(Path(composition.settings.run_dir).absolute())


def find_problems(composition: Composition, folder: RunFolder) -> list[Problem]:
    """Return the errors of a composed training that can be found without its tasks (``draw_tasks``)."""
    problems: list[Problem] = []
    for check in _checks(composition, folder):
        try:
            check()
        except _PROBLEMS as error:
            problems.append(error)
    return problems


def _checks(composition: Composition, folder: RunFolder) -> Iterator[Callable[[], object]]:
    settings, config = composition.settings, composition.verl
    yield from size_checks(config, settings)
    yield partial(_check_model, str(config.actor_rollout_ref.model.path))
    yield partial(resumed_step, config.trainer, folder)
    if settings.run_ahead.enabled:
        yield partial(_check_run_ahead, settings)


def _check_model(name: str) -> None:
    hub_variables(name)  # raises if the model is not available or its weights are damaged
    folder = Path(name)
    if folder.is_dir() and not any(next(folder.glob(kind), None) for kind in ("*.safetensors", "*.bin")):
        raise ConfigError(f"the model {name} has no weights (*.safetensors or *.bin); copy them into that folder")


def _check_run_ahead(settings: TrainSettings) -> None:
    with closing(make_env(settings.env, settings.env_kwargs)) as env:
        plays_itself = isinstance(env, PlaysItself)
    if plays_itself:
        raise ConfigError(f"{settings.env} runs programs, and run-ahead would run them for nothing; remove run_ahead")


def draw_tasks(composition: Composition, folder: RunFolder, tell: Callable[[str], None] = logger.info) -> Tasks:
    """Write the tasks of a run as rows; ``tell`` gets a line if the environment has fewer tasks than the default.

    Raises:
        ConfigError: If there are fewer tasks than a step needs, or a data set's answers have no answer format.
    """
    settings, config = composition.settings, composition.verl
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
    _check_answer_formats(settings, (train_rows, val_rows))
    return Tasks(train_tasks, val_tasks)


def _check_answer_formats(settings: TrainSettings, files: Sequence[Path]) -> None:
    scorer = make_scorer(settings.rewards, settings.answer_format)
    if scorer is None or ANSWER not in scorer.names:
        return
    import pyarrow.parquet

    for path in files:
        for source in pyarrow.parquet.read_table(path, columns=["data_source"])["data_source"].unique().to_pylist():
            try:
                scorer.answer_format_of(source)
            except UnknownAnswerFormat as error:
                raise ConfigError(f"{error}: turntree.answer_format=math") from error


def complete(composition: Composition, folder: RunFolder) -> None:
    """Add the run's files and turntree's settings to verl's configuration."""
    config = composition.verl
    for key, value in {
        "data.train_files": str(folder.rows("train")),
        "data.val_files": str(folder.rows("val")),
        "actor_rollout_ref.rollout.custom.turntree": {
            **composition.settings.played(),
            "run_dir": str(folder.root),
            "checkpoint_dir": str(checkpoints_of(config.trainer, folder)),
        },
        "trainer.default_local_dir": str(folder.checkpoints),
        "trainer.resume_from_path": resume_path(config.trainer),
    }.items():
        OmegaConf.update(config, key, value, force_add=True)


def _speculation(config: DictConfig, settings: TrainSettings) -> Iterator[str]:
    # Read the settings, not the options' names: the file or command line may override an option's keys.
    rollout = config.actor_rollout_ref.rollout
    drafts = EngineSettings.of(rollout).speculation
    if drafts is not None:
        chains = drafts.chain or rollout.name == "vllm"
        most = min(drafts.max_nodes, drafts.max_depth) if chains else drafts.max_nodes
        yield f"tree, drafts {'in chains' if chains else 'in trees'} of up to {most} tokens"
    if settings.import_turns:
        yield f"warm start from {settings.import_turns}"
    if settings.reuse.mode is not ReuseMode.NONE:
        yield f"reuse={settings.reuse.mode} of the last epoch's turns"
    if settings.run_ahead.enabled:
        yield "run_ahead"
    if settings.tool_calls_ahead.enabled:
        yield "tool_calls_ahead"
    if settings.validation.coupled:
        yield "coupled validations"


def _changed(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in ours.items():
        default = theirs.get(key)
        if isinstance(value, dict) and value and isinstance(default, dict | None):
            yield from _changed(value, default or {}, f"{path}{key}.")
        elif key not in theirs or value != default:
            yield f"{path}{key}={shlex.quote(_text(value))}"


def _text(value: Any) -> str:
    # Format a value as in Hydra's override grammar.
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return str(value).replace("'", "")
