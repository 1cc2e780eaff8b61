"""Relations between the sizes of a training: tasks, batches, mini-batches, samples, devices. verl finds most of them
out once the model is loaded, by a division by zero or an assertion in a worker; here each is a line before the start.

Not here: the tokens of micro-batches (``micro_batches``), and memory (``memory``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.asynchronous import updates_while_playing
from turntree.agents.verl.config.engine_section import positions
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import TrainSettings
from turntree.agents.verl.names import REPLICA_SIZES

logger = logging.getLogger(__name__)

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_BATCH, _CHUNK = "data.train_batch_size", "data.gen_batch_size"


def check_sizes(config: DictConfig, settings: TrainSettings) -> None:
    """Check that the sizes of a training fit each other, and warn of tasks that are never played.

    Raises:
        ConfigError: If two do not fit; both are named with their numbers.
    """
    if settings.train_tasks is not None:  # else the environment says how many it has, once the rows are written
        check_tasks(config, settings.train_tasks)
    _check_chunk(config, config.data.train_batch_size)
    _check_replicas(config)
    _check_positions(config)
    for key, mini, parallel in _mini_batches(config):
        _check_mini_batch(config, key, mini, parallel)


def check_tasks(config: DictConfig, train_tasks: int) -> None:
    """Check that there are tasks for a step, and warn of tasks that are never played.

    Raises:
        ConfigError: If a step takes more tasks than there are.
    """
    batch, most = config.data.train_batch_size, int(config.data.get("train_max_samples") or -1)
    tasks = train_tasks if most < 0 else min(most, train_tasks)
    if tasks < batch:
        raise ConfigError(
            f"a step takes {_BATCH}={batch} tasks, and there are {tasks} (turntree.train_tasks"
            f"{', data.train_max_samples' if tasks < train_tasks else ''}): {_BATCH}={tasks}, "
            "or more tasks"
        )
    left = tasks % batch
    if left and not config.data.shuffle and not _by_one(config):
        logger.warning(
            "the last %d of the %d tasks are never played, as %s=%d does not divide their number and data.shuffle is "
            "false: turntree.train_tasks=%d, or data.shuffle=true",
            *(left, tasks, _BATCH, batch, tasks - left),
        )


def _by_one(config: DictConfig) -> bool:
    """Whether verl takes tasks one by one, whatever ``data.gen_batch_size`` is; a batch may then span two epochs."""
    refills = config.trainer.v1.sampler.get("sync_refill_failed_groups")
    filters = OmegaConf.select(config, "algorithm.filter_groups.enable")
    return bool(refills or filters or updates_while_playing(config.trainer.v1.trainer_mode))


def _check_positions(config: DictConfig) -> None:
    """Turntree's own engine refuses rows beyond the model's context, but once verl's processes have started."""
    rollout, model = config.actor_rollout_ref.rollout, str(config.actor_rollout_ref.model.path)
    longest, most = rollout.max_model_len or rollout.prompt_length + rollout.response_length, positions(model)
    if rollout.name == "turntree" and most is not None and longest > most:
        raise ConfigError(
            f"a row has up to {longest} tokens (data.max_prompt_length and data.max_response_length), and the model "
            f"has {most} positions: lower these"
        )


def _check_chunk(config: DictConfig, batch: int) -> None:
    chunk = config.data.get("gen_batch_size")
    if chunk is not None and not _by_one(config) and (chunk < 1 or batch % chunk):
        raise ConfigError(f"{_BATCH} is a multiple of {_CHUNK}, got {batch} and {chunk}; leave the latter out")
    parts = OmegaConf.select(config, f"trainer.v1.{config.trainer.v1.trainer_mode}.parameter_sync_step") or 1
    if batch % parts:
        raise ConfigError(
            f"{_BATCH} is a multiple of trainer.v1.{config.trainer.v1.trainer_mode}.parameter_sync_step, got {batch} "
            f"and {parts}"
        )
    whole = config.data.get("val_batch_size")
    if whole is not None and whole < 1:
        raise ConfigError(f"data.val_batch_size is at least 1, got {whole}; leave it out for one batch of all")


def _devices(config: DictConfig) -> int:
    return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)


def _check_replicas(config: DictConfig) -> None:
    rollout, devices = config.actor_rollout_ref.rollout, _devices(config)
    sizes = {name: int(rollout.get(name) or 1) for name in REPLICA_SIZES}
    if devices % math.prod(sizes.values()):
        named = " x ".join(f"{_ROLLOUT}.{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(
            f"the devices are shared out among replicas of {named}, and trainer.nnodes={config.trainer.nnodes} x "
            f"trainer.n_gpus_per_node={config.trainer.n_gpus_per_node} is no multiple of that"
        )


def _mini_batches(config: DictConfig) -> Iterator[tuple[str, DictConfig, int]]:
    """The sections with mini-batches: key, section, and devices that share one row."""
    actor = config.actor_rollout_ref.actor
    yield _ACTOR, actor, int(actor.get("ulysses_sequence_parallel_size") or 1)
    enabled = config.critic.enable
    if config.algorithm.adv_estimator == "gae" if enabled is None else enabled:
        yield "critic", config.critic, int(config.critic.get("ulysses_sequence_parallel_size") or 1)


def _check_mini_batch(config: DictConfig, key: str, section: DictConfig, parallel: int) -> None:
    batch, samples, devices = config.data.train_batch_size, config.actor_rollout_ref.rollout.n, _devices(config)
    mini, name = section.ppo_mini_batch_size, f"{key}.ppo_mini_batch_size"
    if not isinstance(mini, int) or mini < 1 or (mini > batch and not section.use_dynamic_bsz):
        # With micro-batches by tokens verl fills a mini-batch up with rows that teach nothing.
        raise ConfigError(f"{name} lies between 1 and {_BATCH}, got {mini} and {batch}: {name}={batch}")
    if section.strategy not in ("fsdp", "fsdp2"):
        return  # who shares a row there is the engine's to say
    if devices % parallel:
        raise ConfigError(
            f"{key}.ulysses_sequence_parallel_size={parallel} devices share a row, and the {devices} devices "
            "(trainer.nnodes x trainer.n_gpus_per_node) are no multiple of that"
        )
    shares = devices // parallel
    if mini * samples % shares:
        raise ConfigError(
            f"the rows of a mini-batch, {name}={mini} x {_ROLLOUT}.n={samples}, are shared out evenly among {shares} "
            f"workers (trainer.nnodes x trainer.n_gpus_per_node, by ulysses_sequence_parallel_size), got "
            f"{mini * samples}"
        )
    if not section.use_dynamic_bsz and batch * samples % devices:
        raise ConfigError(
            f"the rows of a step, {_BATCH}={batch} x {_ROLLOUT}.n={samples}, are shared out evenly among {devices} "
            f"devices (trainer.nnodes x trainer.n_gpus_per_node), got {batch * samples}"
        )
