"""turntree's samplers of a training, which also write down what the trainer can read of each batch."""

from __future__ import annotations

import json
import os
from typing import Any

import transfer_queue

from turntree.agents.verl.episodes.async_sampler import OvertakenReplayBuffer
from turntree.agents.verl.episodes.sampler import PromptReplayBuffer


class _Looking:
    """Appends a line for each batch of a training to the file ``$LOOKING``: the columns of each episode."""

    columns = ("response_mask", "rollout_log_probs", "token_levels", "behaviour_log_probs")

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        sampler: Any = super()
        batch, metrics = sampler.sample(*args, **kwargs)
        if batch.partition_id != "train":
            return batch, metrics
        names = [*self.columns]
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        rows = [{name: _plain(data[name][row]) for name in names} for row in range(len(batch.keys))]
        with open(os.environ["LOOKING"], "a") as file:
            file.write(json.dumps(rows) + "\n")
        return batch, metrics


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


class Looking(_Looking, PromptReplayBuffer):
    pass


class LookingOvertaken(_Looking, OvertakenReplayBuffer):
    """Writes the tasks of each batch down."""

    columns = ("index",)
