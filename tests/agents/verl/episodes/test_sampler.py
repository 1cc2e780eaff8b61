import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.episodes import sampler
from turntree.agents.verl.episodes.sampler import PromptReplayBuffer
from turntree.agents.verl.records.metrics import EPISODE


def make(mode: str = "sync", refill_fn: Any = None, **settings: Any) -> PromptReplayBuffer:
    limits = {"max_off_policy_threshold": 8, "max_off_policy_strategy": "drop"}
    configs = {"trainer_config": OmegaConf.create({}), "sampler_kwargs": OmegaConf.create(settings)}
    return PromptReplayBuffer(trainer_mode=mode, refill_fn=refill_fn, **configs, **limits)


def test_verls_own_interval_is_still_long_and_still_not_configurable() -> None:
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    assert inspect.signature(ReplayBuffer).parameters["poll_interval"].default == 2.0
    assert "poll_interval" not in inspect.getsource(trainer_base)


def test_an_unknown_setting_names_the_nearest_and_another_trainer_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'poll_interval'"):
        make(poll_intervall=1)
    with pytest.raises(ConfigError, match="trainer_mode=sync, got 'colocate_async'"):
        make("colocate_async")


def test_settings_reach_verls_sampler_and_a_filter_that_never_ends_is_ended() -> None:
    asked: list[int] = []
    batches = {"train_batch_size": 4, "max_num_gen_batches": 2}
    buffer = make(poll_interval=0.05, filter_groups_metric="reward", refill_fn=asked.append, **batches)
    assert (buffer.poll_interval, buffer.filter_groups_metric, buffer.train_batch_size) == (0.05, "reward", 4)
    buffer.refill_fn(8)
    with pytest.raises(ConfigError, match=r"requested 9 new prompts .* the limit is 8"):
        buffer.refill_fn(1)
    assert asked == [8]


@pytest.mark.parametrize(
    ("partition", "logged"), [("train", {"turntree/turns", "turntree/forward_passes"}), ("val", set())]
)
def test_a_training_batch_brings_turntrees_figures(monkeypatch, partition, logged):
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    info = {"turns": 3, "tool_calls": 2, "truncated": 0.0, "attempts": 1, "failure": 0.0, "ungraded": 0.0}
    info |= {"tool_calls_unparsed": 0, "turns_cut": 0}
    data = {"extra_fields": [{EPISODE: info}], "token_levels": torch.nested.nested_tensor([[1, 0]])}
    asked: dict[str, Any] = {}

    def rows(**request: Any) -> Any:
        asked.update(request)
        return data

    batch = SimpleNamespace(partition_id=partition, keys=["a_0_0", "pad"], tags=[{}, {"is_padding": True}])
    monkeypatch.setattr(ReplayBuffer, "sample", lambda self, **_: (batch, {"verl/own": 1.0}))
    monkeypatch.setattr(sampler.transfer_queue, "kv_batch_get", rows)
    monkeypatch.setattr(sampler, "read_counters", lambda: [{"forward_passes": 5}])
    found, metrics = make().sample(1, partition, 1)
    assert found is batch
    assert metrics["verl/own"] == 1.0
    assert logged <= set(metrics)
    assert bool(asked) == any(name.startswith("turntree/") for name in metrics) == (partition == "train")
    assert asked.get("keys", ["a_0_0"]) == ["a_0_0"]


def test_dapos_filter_keeps_groups_of_which_no_episode_was_played(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import replay_buffer

    keys = [f"{uid}_{session}_0" for uid in ("lost", "equal", "mixed") for session in range(2)]
    scores = {"lost": [0.0, 0.0], "equal": [1.0, 1.0], "mixed": [0.0, 1.0]}

    def rows(*, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        parts = [key.split("_") for key in keys]
        rewards = [torch.tensor([0.0, scores[uid][int(session)]]) for uid, session, _ in parts]
        masks = [torch.tensor([0, 0] if uid == "lost" else [1, 0]) for uid, *_ in parts]
        return {"rm_scores": rewards, "response_mask": masks}

    for module in (replay_buffer.tq, sampler.transfer_queue):
        monkeypatch.setattr(module, "kv_batch_get", rows)
    buffer = make(filter_groups_metric="reward", refill_fn=len, train_batch_size=4)
    buffer.partitions["train"] = {key: {} for key in keys}
    buffer.finished_keys["train"] = {"lost", "equal", "mixed"}
    for _ in range(2):  # the second poll finds it classified
        assert buffer._dapo_filtered_keys("train") == ({"equal"}, {1.0: 1})
