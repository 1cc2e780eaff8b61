from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.episodes import async_sampler
from turntree.agents.verl.episodes.async_sampler import REVERIFIED, InterruptedReplayBuffer

NONE: tuple[Any, ...] = (set(), set(), set(), {})


def make(mode: str = "colocate_async", **settings: Any) -> InterruptedReplayBuffer:
    limits = {"max_off_policy_threshold": None, "max_off_policy_strategy": "drop"}
    configs = {"trainer_config": OmegaConf.create({}), "sampler_kwargs": OmegaConf.create(settings)}
    return InterruptedReplayBuffer(trainer_mode=mode, refill_fn=None, **configs, **limits)


def ready(buffer: InterruptedReplayBuffer, step: int, groups: dict[str, tuple[int, int | None]]) -> set[str]:
    buffer._step, buffer._wanted = step, 2
    for uid, (submitted, reverified) in groups.items():
        buffer.prompt_global_steps["train"][uid] = submitted
        (buffer.running_keys if reverified is None else buffer.finished_keys)["train"].add(uid)
        if reverified is not None:
            buffer.partitions["train"] |= {f"{uid}_{session}_0": {REVERIFIED: reverified} for session in range(2)}
    return buffer._sampleable_terminal_keys("train", NONE)


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ({"b": (2, 2), "a": (2, 2), "c": (2, 2)}, {"a", "b"}),  # in verl's random names' order
        ({"b": (1, 2), "a": (2, 2), "c": (2, 2)}, {"a", "b"}),
        ({"a": (1, None), "b": (2, 2), "c": (2, 2)}, {"b"}),  # not c: what ends first is short
        ({"a": (1, 1), "b": (2, 2), "c": (2, 2)}, {"b"}),  # a is to be verified again first
    ],
)
def test_a_step_is_trained_on_what_was_submitted_first_once_it_is_of_the_present_weights(groups, found):
    assert ready(make(), 3, groups) == found


def test_with_other_ways_to_resume_verl_takes_what_ends_first() -> None:
    """Control."""
    groups = {"a": (1, None), "b": (2, 1), "c": (2, 1)}
    assert ready(make(on_resume="turn"), 3, groups) == {"b", "c"}
    assert ready(make(in_order=False), 3, {**groups, "d": (2, 2)}) == {"d"}, "what ends first, if it is verified again"
    assert ready(make(), 3, groups) == ready(make("separate_async"), 3, groups) == set()


def test_rows_of_a_group_that_are_being_replaced_are_not_missed() -> None:
    buffer = make()
    ready(buffer, 3, {"a": (1, 2), "b": (1, 2)})
    buffer.partitions["train"]["a_0_0"] = {}  # listed, without tags and data yet
    assert buffer._sampleable_terminal_keys("train", NONE) == {"b"}
    buffer.partitions["train"].clear()
    assert buffer._sampleable_terminal_keys("train", NONE) == set()


def test_a_group_that_failed_when_it_was_reverified_goes_with_its_old_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the group that did not fail."""
    cleared: set[str] = set()
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda partition_id, keys: cleared.update(keys))
    buffer = make()
    ready(buffer, 3, {"a": (1, 2), "b": (1, 2)})
    buffer.finished_keys["train"].remove("a")
    buffer.failure_keys["train"].add("a")
    reasons = buffer._terminal_eviction_reasons(3, "train")
    assert buffer._sampleable_terminal_keys("train", reasons) == {"b"}
    assert buffer._evict_terminal_groups(3, "train", reasons)[0] == {"a"}
    assert cleared == {"a", "a_0_0", "a_1_0"}


def test_another_trainer_mode_and_another_way_are_refused() -> None:
    with pytest.raises(ConfigError, match="trainer_mode=colocate_async or separate_async, got 'sync'"):
        make("sync")
    with pytest.raises(ConfigError, match="never"):
        make(on_resume="never")
    assert async_sampler.AsyncSamplerSettings().poll_interval == 0.1
