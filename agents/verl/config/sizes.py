"""Check how a training's sizes fit together: tasks, batches, mini-batches, samples, devices.

verl finds most conflicts after loading the model, by a division by zero or an assertion in a worker.
Not here: the memory of a GPU (``memory``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.asynchronous import SEPARATE, updates_while_playing
from turntree.agents.verl.config.engine_section import positions
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import TrainSettings
from turntree.agents.verl.names import REPLICA_SIZES

logger = logging.getLogger(__name__)

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_BATCH, _CHUNK = "data.train_batch_size", "data.gen_batch_size"


def size_checks(config: DictConfig, settings: TrainSettings) -> Iterator[Callable[[], None]]:
    """Yield independent checks of a training's sizes; each raises a ``ConfigError`` with both numbers."""
    if settings.train_tasks is not None:  # else the number of tasks is known only once the rows are written
        yield partial(check_tasks, config, settings.train_tasks)
    yield partial(_check_chunk, config, config.data.train_batch_size)
    yield partial(_check_replicas, config)
    yield partial(_check_positions, config)
    for key, section, model, parallel in _mini_batches(config):
        yield partial(_check_mini_batch, config, key, section, parallel)
        yield partial(_check_sequence_parallel, key, model, parallel)
    yield partial(_check_micro_batches, config)


def check_tasks(config: DictConfig, train_tasks: int) -> None:
    """Raise if there are too few tasks for a step; warn of tasks that are never played."""
    batch, tasks = config.data.train_batch_size, _read_tasks(config, train_tasks)
    if tasks < batch:
        raise ConfigError(
            f"a step takes {_BATCH}={batch} tasks, and there are {tasks} (turntree.train_tasks"
            f"{', data.train_max_samples' if tasks < train_tasks else ''}); set {_BATCH}={tasks}, or add tasks"
        )
    left = tasks % batch
    if left and not config.data.shuffle and not _by_one(config):
        logger.warning(
            "the last %d of the %d tasks are never played, because %s=%d does not divide the number of tasks and "
            "data.shuffle is false; set turntree.train_tasks=%d, or data.shuffle=true",
            *(left, tasks, _BATCH, batch, tasks - left),
        )


def epoch_steps(config: DictConfig, train_tasks: int) -> float:
    """Return the steps of an epoch: a whole number, unless a step may span two epochs."""
    steps: float = _read_tasks(config, train_tasks) / config.data.train_batch_size
    return steps if _by_one(config) else math.floor(steps)


def _read_tasks(config: DictConfig, train_tasks: int) -> int:
    most = int(config.data.get("train_max_samples") or -1)
    return train_tasks if most < 0 else min(most, train_tasks)


def _by_one(config: DictConfig) -> bool:
    # In these modes verl takes tasks one by one, whatever ``data.gen_batch_size`` is: a batch may span two epochs.
    refills = config.trainer.v1.sampler.get("sync_refill_failed_groups")
    filters = OmegaConf.select(config, "algorithm.filter_groups.enable")
    return bool(refills or filters or updates_while_playing(config.trainer.v1.trainer_mode))


def _check_positions(config: DictConfig) -> None:
    # turntree's own engine would refuse rows longer than the model's context only after verl's processes have started.
    rollout, model = config.actor_rollout_ref.rollout, str(config.actor_rollout_ref.model.path)
    longest, most = rollout.max_model_len or rollout.prompt_length + rollout.response_length, positions(model)
    if rollout.name == "turntree" and most is not None and longest > most:
        raise ConfigError(
            f"a row has up to {longest} tokens (data.max_prompt_length and data.max_response_length), and the model "
            f"has {most} positions; lower these lengths"
        )


def _check_chunk(config: DictConfig, batch: int) -> None:
    chunk = config.data.get("gen_batch_size")
    if chunk is not None and not _by_one(config) and (chunk < 1 or batch % chunk):
        raise ConfigError(f"{_BATCH} is a multiple of {_CHUNK}, got {batch} and {chunk}; remove {_CHUNK}")
    parts = OmegaConf.select(config, f"trainer.v1.{config.trainer.v1.trainer_mode}.parameter_sync_step") or 1
    if batch % parts:
        raise ConfigError(
            f"{_BATCH} is a multiple of trainer.v1.{config.trainer.v1.trainer_mode}.parameter_sync_step, got {batch} "
            f"and {parts}"
        )
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if config.trainer.v1.trainer_mode == SEPARATE and batch != parts * mini:
        raise ConfigError(
            f"{_BATCH} is trainer.v1.{SEPARATE}.parameter_sync_step x {_ACTOR}.ppo_mini_batch_size, got {batch} and "
            f"{parts} x {mini}"
        )
    whole = config.data.get("val_batch_size")
    if whole is not None and whole < 1:
        raise ConfigError(f"data.val_batch_size is at least 1, got {whole}; remove it to validate in one batch")


def _devices(config: DictConfig) -> int:
    return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)


def _check_replicas(config: DictConfig) -> None:
    rollout, mode = config.actor_rollout_ref.rollout, config.trainer.v1.trainer_mode
    own = mode == SEPARATE and not config.actor_rollout_ref.hybrid_engine
    where, pool = (_ROLLOUT, rollout) if own else ("trainer", config.trainer)
    sizes = {name: int(rollout.get(name) or 1) for name in REPLICA_SIZES}
    replica = math.prod(sizes.values())
    if pool.nnodes * pool.n_gpus_per_node % replica or not pool.nnodes * pool.n_gpus_per_node:
        named = " x ".join(f"{_ROLLOUT}.{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(
            f"each replica takes {named or 'one device'}, and the devices, {where}.nnodes={pool.nnodes} x "
            f"{where}.n_gpus_per_node={pool.n_gpus_per_node}, are no multiple of that"
        )
    experts = int(rollout.get("expert_parallel_size") or 1)
    if experts not in (1, replica):
        raise ConfigError(
            f"{_ROLLOUT}.expert_parallel_size must be 1 or tensor_model_parallel_size x data_parallel_size, got "
            f"{experts} and {replica}"
        )


def _mini_batches(config: DictConfig) -> Iterator[tuple[str, DictConfig, DictConfig, int]]:
    # For the actor, and the critic if enabled: key, section, model section, and number of devices that share one row
    # (Ulysses sequence parallelism).
    actor = config.actor_rollout_ref.actor
    own = actor.ulysses_sequence_parallel_size or 1
    # As in verl's FSDPActorConfig, the section's own size counts if it is above 1.
    parallel = own if own > 1 else actor.fsdp_config.ulysses_sequence_parallel_size or 1
    yield _ACTOR, actor, config.actor_rollout_ref.model, parallel
    enabled = config.critic.enable
    if config.algorithm.adv_estimator == "gae" if enabled is None else enabled:
        yield "critic", config.critic, config.critic.model, config.critic.fsdp.ulysses_sequence_parallel_size or 1


def _ulysses(key: str) -> str:
    return f"{'critic.fsdp' if key == 'critic' else key}.ulysses_sequence_parallel_size"


def _check_sequence_parallel(key: str, model: DictConfig, parallel: int) -> None:
    if parallel > 1 and not model.use_remove_padding:
        raise ConfigError(
            f"{_ulysses(key)}={parallel} splits rows without padding: it needs "
            f"{'critic' if key == 'critic' else 'actor_rollout_ref'}.model.use_remove_padding=true, and flash-attn"
        )


def _check_micro_batches(config: DictConfig) -> None:
    # verl splits actor updates and log-probabilities into micro-batches by tokens or by rows, both in the same way.
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if bool(actor.use_dynamic_bsz) != bool(rollout.log_prob_use_dynamic_bsz):
        raise ConfigError(
            f"{_ACTOR}.use_dynamic_bsz and {_ROLLOUT}.log_prob_use_dynamic_bsz must be equal, got "
            f"{actor.use_dynamic_bsz} and {rollout.log_prob_use_dynamic_bsz}"
        )
    keys = [] if actor.use_dynamic_bsz else [f"{_ACTOR}.ppo", f"{_ROLLOUT}.log_prob"]
    if not actor.use_dynamic_bsz and (actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        keys.append("actor_rollout_ref.ref.log_prob")
    for key in (f"{name}_micro_batch_size_per_gpu" for name in keys):
        if not OmegaConf.select(config, key):
            raise ConfigError(f"{_ACTOR}.use_dynamic_bsz=false needs the rows of a micro-batch, {key}=1")


def _check_mini_batch(config: DictConfig, key: str, section: DictConfig, parallel: int) -> None:
    batch, samples, devices = config.data.train_batch_size, config.actor_rollout_ref.rollout.n, _devices(config)
    mini, name = section.ppo_mini_batch_size, f"{key}.ppo_mini_batch_size"
    if not isinstance(mini, int) or mini < 1 or (mini > batch and not section.use_dynamic_bsz):
        # With micro-batches by tokens, verl pads a mini-batch with masked rows.
        raise ConfigError(f"{name} must lie between 1 and {_BATCH}, got {mini} and {batch}; set {name}={batch}")
    if devices % parallel:
        raise ConfigError(
            f"{_ulysses(key)}={parallel} devices share a row, and the {devices} devices "
            "(trainer.nnodes x trainer.n_gpus_per_node) are no multiple of that"
        )
    shares = devices // parallel
    if mini * samples % shares:
        raise ConfigError(
            f"the rows of a mini-batch, {name}={mini} x {_ROLLOUT}.n={samples}, must divide evenly among {shares} "
            f"workers (trainer.nnodes x trainer.n_gpus_per_node, by ulysses_sequence_parallel_size), got "
            f"{mini * samples}"
        )
    if not section.use_dynamic_bsz and batch * samples % devices:
        raise ConfigError(
            f"the rows of a step, {_BATCH}={batch} x {_ROLLOUT}.n={samples}, must divide evenly among {devices} "
            f"devices (trainer.nnodes x trainer.n_gpus_per_node), got {batch * samples}"
        )
