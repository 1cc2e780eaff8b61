"""The rollout servers' part of verl's checkpoints.

verl calls ``StoreCheckpoint`` after it has saved the trainer (``trainer.save_freq``), and each server writes its state
into the checkpoint's folder. When verl resumes (``trainer.resume_mode``), the first weights that reach a server carry
the step, and the server loads its part of that step's checkpoint.

If a run is killed after the trainer's part was saved and before the servers' part, the checkpoint lacks the servers'
part. The run then resumes with a warning and empty draft stores, which does not change any rollout's distribution.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from turntree.agents.verl.names import ENGINES, replica_count, server_name
from turntree.agents.verl.records.checkpoint_state import state_folder

logger = logging.getLogger(__name__)


class StoreCheckpoint(CheckpointCallback):  # type: ignore[misc]
    """The class for ``trainer.checkpoint_callback_class``."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """Make every server write its part, and wait; raise ``OSError`` if a part cannot be written."""
        rollout = self.config.actor_rollout_ref.rollout
        if rollout.name not in ENGINES:
            return
        checkpoint = Path(checkpoint_dir).absolute()
        replicas = replica_count(self.config)
        parts = {rank: str(state_folder(checkpoint, rank)) for rank in range(replicas)}
        servers: dict[int, Any] = {
            rank: ray.get_actor(server_name(rank, backend=rollout.name)) for rank in range(replicas)
        }
        saved = {rank: servers[rank].save_state.remote(part, global_step) for rank, part in parts.items()}
        for rank, done in saved.items():
            try:
                ray.get(done)
            except RayActorError as error:
                logger.warning("the checkpoint has no part of engine replica %d, whose actor died: %s", rank, error)
        # verl removes the policies of old checkpoints (``max_actor_ckpt_to_keep``), but not the servers' parts.
        for part in checkpoint.parent.glob("global_step_*/turntree"):
            if not (part.parent / "actor").is_dir():
                shutil.rmtree(part, ignore_errors=True)
