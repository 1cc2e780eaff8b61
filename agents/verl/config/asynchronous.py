"""Decide which settings verl's asynchronous trainers support; no other module does.

| trainer mode | engines | supported with |
|---|---|---|
| `sync` | all | all |
| `colocate_async` | all | tree drafts, draft sharing between replicas, coupled validations |
| `separate_async` | all, on separate devices (`hybrid_engine=false`) | as `colocate_async` |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf

from turntree.agents.resuming.resume_config import OnResume, ResumeConfig
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.groups import SYNC
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.settings import PlaySettings, TrainSettings
from turntree.agents.verl.names import ENGINES, ROLLOUT_NAME

COLOCATED, SEPARATE = "colocate_async", "separate_async"
_SAMPLER = "InterruptedReplayBuffer"  #: turntree's replay buffer, a "sampler" in verl's keys
_MANAGER = "turntree.agents.verl.playing.manager.EpisodeManager"


def updates_while_playing(trainer_mode: str) -> bool:
    """Return whether a trainer of this mode updates the weights while episodes are played."""
    return trainer_mode != SYNC


def with_mode(settings: TrainSettings, config: Any) -> TrainSettings:
    """Return the settings with a section ``asynchronous`` only if weights change during episodes."""
    interrupts = on_resume(config, settings) is not None
    return replace(settings, asynchronous=(settings.asynchronous or ResumeConfig()) if interrupts else None)


def on_resume(config: Any, settings: PlaySettings) -> OnResume | None:
    """Return what happens to sampled tokens at a weight update; ``None`` if updates come between steps."""
    mode, rollout = config.trainer.v1.trainer_mode, config.actor_rollout_ref.rollout
    manager = rollout.agent.agent_loop_manager_class
    own = manager == _MANAGER or OmegaConf.select(config, "trainer.v1.sampler.custom_sampler.name") == _SAMPLER
    if not updates_while_playing(mode) or not own:  # verl's own manager and sampler handle updates as verl does
        return None
    where = f"trainer.v1.trainer_mode={mode}"
    if mode not in (COLOCATED, SEPARATE):
        known = f"mode={SYNC}, {COLOCATED} or {SEPARATE}"
        raise ConfigError(f"{where} is not supported with turntree's episodes; set {known}")
    if manager != _MANAGER or rollout.name not in ENGINES:
        raise ConfigError(
            f"{where} needs turntree's manager of episodes, as mode={mode} sets it, and rollout.name="
            f"{' or '.join(ENGINES)}, got agent_loop_manager_class={manager} and rollout.name={rollout.name}"
        )
    if mode == SEPARATE:
        _check_devices(config)
    if settings.reuse.mode is not ReuseMode.NONE or settings.run_ahead.enabled:
        raise ConfigError(
            f"{where} starts episodes of later steps by itself and re-verifies them with their own noise: it supports "
            "speculation=tree or none, reuse=none, and no turntree.run_ahead"
        )
    if OmegaConf.select(config, "algorithm.filter_groups.enable"):
        raise ConfigError(
            f"{where} re-verifies finished groups, and DAPO's filter would drop them by their earlier rewards: "
            "set algorithm=grpo, or mode=sync"
        )
    return (settings.asynchronous or ResumeConfig()).on_resume


def _check_devices(config: Any) -> None:
    trained, rollout = config.actor_rollout_ref, config.actor_rollout_ref.rollout
    if trained.hybrid_engine or rollout.checkpoint_engine.backend != ROLLOUT_NAME:
        raise ConfigError(
            f"trainer.v1.trainer_mode={SEPARATE} needs replicas on separate devices, and a way to send the weights "
            f"there: set actor_rollout_ref.hybrid_engine=false and rollout.checkpoint_engine.backend={ROLLOUT_NAME}, "
            f"as mode={SEPARATE} does, got {trained.hybrid_engine} and {rollout.checkpoint_engine.backend}"
        )
    mini_batches = config.trainer.v1.separate_async.parameter_sync_step
    bypasses = "algorithm.rollout_correction.bypass_mode"
    if config.trainer.device == "cpu" and mini_batches > 1 and not OmegaConf.select(config, bypasses):
        raise ConfigError(
            f"trainer.v1.separate_async.parameter_sync_step={mini_batches} on the CPU needs {bypasses}=true: verl "
            "0.9.1 saves the weights at the start of a step with .cpu(), which copies nothing on the CPU"
        )
    pretended = OmegaConf.select(config, "ray_kwargs.ray_init.num_gpus")
    needed = sum(pool.nnodes * pool.n_gpus_per_node for pool in (config.trainer, rollout))
    if pretended is not None and pretended < needed:
        raise ConfigError(
            f"trainer.v1.trainer_mode={SEPARATE} needs {needed} devices for trainer and rollout, and Ray "
            f"is told to pretend {pretended}: set ray_kwargs.ray_init.num_gpus={needed}"
        )
