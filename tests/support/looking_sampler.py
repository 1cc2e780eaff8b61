"""turntree's sampler of a training, which also writes down what the trainer can read of each batch."""

from __future__ import annotations

import json
import os
from typing import Any

import transfer_queue

from turntree.agents.verl.episodes.sampler import PromptReplayBuffer

COLUMNS = ["response_mask", "rollout_log_probs", "token_levels", "behaviour_log_probs"]


class Looking(PromptReplayBuffer):
    """Appends a line for each batch of a training to the file ``$LOOKING``: the columns of each episode."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        batch, metrics = super().sample(*args, **kwargs)
        if batch.partition_id != "train":
            return batch, metrics
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=COLUMNS)
        rows = [{name: data[name][row].tolist() for name in COLUMNS} for row in range(len(batch.keys))]
        with open(os.environ["LOOKING"], "a") as file:
            file.write(json.dumps(rows) + "\n")
        return batch, metrics
