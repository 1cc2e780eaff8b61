"""``turntree train --dry-run``: compose a training and prepare it as ``train`` does, and start nothing.

The tasks are written as rows to a temporary folder. Not checked: what needs the GPUs, the other nodes or the network,
such as a model or a data set of the hub that is not in the cache.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.verl.config.compose import Composition, compose, verl_defaults
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.sizes import check_sizes
from turntree.agents.verl.launch import prepare
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run.variables import ModelUnavailable, hub_variables, joins_cluster
from turntree.envs.errors import DataError


class DryRun(NamedTuple):
    """A training that could be started."""

    composition: Composition
    tasks: str
    keys: tuple[str, ...]
    """What differs from verl's own defaults, as ``key=value``."""

    def summary(self) -> Iterator[str]:
        """The training in a few lines."""
        choice, settings, config = self.composition.choice, self.composition.settings, self.composition.verl
        options = [f"{group}={name}" for group, name in choice.options if group != "speculation"]
        yield f"options: {' '.join(options)} speculation=[{','.join(choice.speculation)}]"
        yield f"environment: {settings.env}; {self.tasks}"
        yield f"step: {config.data.train_batch_size} tasks x {config.actor_rollout_ref.rollout.n} samples"
        yield f"row: {config.data.max_prompt_length} tokens of prompt, {config.data.max_response_length} of response"
        where = f"{config.trainer.nnodes} x {config.trainer.n_gpus_per_node} GPUs"
        cluster = " of a running Ray cluster" if joins_cluster(config) else ""
        yield f"devices: {'CPU' if config.trainer.device == 'cpu' else where}{cluster}"
        yield f"run: {Path(settings.run_dir).absolute()}"


def dry_run(config: str, overrides: Sequence[str] = ()) -> DryRun:
    """Compose and prepare a training without starting it.

    Args:
        config: Name of a shipped configuration, path of a YAML file, or the first override, as for ``train``.
        overrides: ``key=value``, as for ``train``.

    Raises:
        ConfigError: If ``train`` would refuse it before verl starts.
    """
    composition = compose(config, overrides)
    check_sizes(composition.verl, composition.settings)
    keys = tuple(_changed(plain(composition.verl), verl_defaults()[1]))  # `prepare` adds the run's folders
    if Path(model := str(composition.verl.actor_rollout_ref.model.path)).is_dir():
        hub_variables(model)  # finds damaged weights
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        run = RunFolder(Path(folder))
        try:
            with suppress(ModelUnavailable):  # prepare's last check, for a cluster: its nodes may have the model
                prepare(composition, run, Path(folder))
            tasks = f"{_count(run.rows('train'))} tasks to train on, {_count(run.rows('val'))} to validate"
        except ConfigError as error:
            # A data set of the hub may be out of reach here and not where the training runs; a named file may not.
            if not isinstance(error.__cause__, DataError) or "data" in composition.settings.env_kwargs:
                raise
            tasks = f"its tasks are not checked: {error}"
    return DryRun(composition, tasks, keys)


def _count(rows: Path) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.read_metadata(rows).num_rows)


def _changed(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in ours.items():
        default = theirs.get(key)
        if isinstance(value, dict) and value and isinstance(default, dict | None):
            yield from _changed(value, default or {}, f"{path}{key}.")
        elif key not in theirs or value != default:
            yield f"{path}{key}={shlex.quote(_text(value))}"


def _text(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return str(value).replace("'", "")
