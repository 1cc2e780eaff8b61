"""turntree's samplers that also record what the trainer can read of each batch."""

import json
import os
from typing import Any

import transfer_queue

from turntree.agents.verl.episodes.async_sampler import REVERIFIED, InterruptedReplayBuffer
from turntree.agents.verl.episodes.sampler import PromptReplayBuffer

COLUMNS = ["response_mask", "rollout_log_probs", "token_levels", "behaviour_log_probs"]


class Looking(PromptReplayBuffer):
    """Append a line for each training batch to the file ``$LOOKING``: the columns of each episode."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        batch, metrics = super().sample(*args, **kwargs)
        if batch.partition_id != "train":
            return batch, metrics
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=COLUMNS)
        _write_down([{name: data[name][row].tolist() for name in COLUMNS} for row in range(len(batch.keys))])
        return batch, metrics


class LookingAgain(InterruptedReplayBuffer):
    """Record each row of an asynchronous training with its task, session and weights."""

    def sample(self, global_steps: int, *args: Any, **kwargs: Any) -> Any:
        batch, metrics = super().sample(global_steps, *args, **kwargs)
        if batch.partition_id != "train":
            return batch, metrics
        tasks = transfer_queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["index"])["index"]
        _write_down(
            [
                {
                    "step": global_steps,
                    "index": int(task),
                    "session": int(key.split("_")[1]),
                    "judged": tag[REVERIFIED],
                    "versions": [tag["min_global_steps"], tag["max_global_steps"]],
                }
                for key, tag, task in zip(batch.keys, batch.tags, tasks, strict=True)
            ]
        )
        return batch, metrics


def _write_down(rows: list[Any]) -> None:
    with open(os.environ["LOOKING"], "a") as file:
        file.write(json.dumps(rows) + "\n")
