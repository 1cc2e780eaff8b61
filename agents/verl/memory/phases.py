"""Memory of each phase of a step on one GPU that verl's trainer and an engine share.

verl wakes the engine for rollouts and puts it to sleep for log-probabilities and the update. It then wakes the engine's
weights, not its cache, to receive the new weights (``ActorRolloutRefWorker.update_weights``). The estimate is an upper
bound of the tensors that the formulas count. ``SPARE``, a tenth of the GPU, is left for fragmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turntree.agents.verl.memory.rollout import RolloutMemory, rollout_memory
from turntree.agents.verl.memory.shapes import shape_of
from turntree.agents.verl.memory.trainer import TrainerMemory

CARD = 80_000_000_000  #: bytes of a GPU that is sold with 80 GB
SPARE = 0.1  #: share of a GPU that a shipped size leaves free
# Assumed, not measured: CUDA contexts and NCCL buffers of trainer and engine, and SGLang's captured graphs.
_RESERVE = 3 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory of a training on each of its GPUs."""

    gpu: int  #: memory of the GPU, bytes
    gpus: int  #: number of GPUs
    phases: Mapping[str, Mapping[str, int]]  #: bytes by phase and part
    rollout: RolloutMemory
    host: int  #: offloaded state in a node's host memory, bytes

    @property
    def peak(self) -> int:
        """Return the bytes of the largest phase."""
        return max(sum(parts.values()) for parts in self.phases.values())

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def fits(self) -> bool:
        """Return whether every phase leaves ``SPARE`` free and the cache holds at least one episode."""
        return self.peak <= (1 - SPARE) * self.gpu and self.rollout.tokens >= self.rollout.context

    @property
    def episodes(self) -> int:
        """Return how many episodes of full length fit into the cache at once."""
        return self.rollout.tokens // self.rollout.context


def estimate(config: Any, gpu: int = CARD) -> Estimate:
    """Estimate the memory of a training on GPUs of ``gpu`` bytes each."""
    actor, rollout, critic = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.critic
    shape = shape_of(str(config.actor_rollout_ref.model.path))
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    trained = TrainerMemory.read(
        shape,
        gpus=gpus,
        tokens=actor.ppo_max_token_len_per_gpu,
        forward_tokens=rollout.log_prob_max_token_len_per_gpu,
        fsdp=actor.fsdp_config,
        model=config.actor_rollout_ref.model,
    )
    engine = rollout_memory(config, shape, gpu)
    models = {"update": trained}
    if config.algorithm.adv_estimator == "gae" if critic.enable is None else critic.enable:
        tokens = critic.ppo_max_token_len_per_gpu
        critic_memory = TrainerMemory.read(
            shape_of(str(critic.model.path)),
            gpus=gpus,
            tokens=tokens,
            forward_tokens=tokens,
            fsdp=critic.fsdp,
            model=critic.model,
        )
        models["update of the critic"] = replace(critic_memory, logits=False)
    asleep = {"reserve": _RESERVE, "engine asleep": engine.buffers}
    between = sum(model.between for model in models.values())
    phases: dict[str, dict[str, int]] = {
        "rollout": {"reserve": _RESERVE, "engine": engine.awake, "trainer": between},
        "log-probabilities": {
            **asleep,
            "trainer": between - trained.between + trained.weights + trained.waiting_moments,
            "pass": trained.forward,
        },
    }
    for name, model in models.items():
        phases[name] = {
            **asleep,
            "trainer": between - model.between + model.weights + model.moments,
            "gradients": model.gradients,
            "pass or Adam's step": max(model.backward, model.step),
        }
    bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    phases["weight transfer"] = {
        **asleep,
        "engine's weights": engine.weights,
        "trainer": between,
        "tensors on the way": bucket + 6 * shape.embedding,  # the largest tensor, gathered in float32 and cast
    }
    on_node = config.trainer.n_gpus_per_node * sum(model.host for model in models.values())
    return Estimate(gpu=gpu, gpus=gpus, phases=phases, rollout=engine, host=on_node)
