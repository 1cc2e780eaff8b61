from __future__ import annotations

import pytest

from turntree.agents.reuse_config import ReuseMode
from turntree.agents.verl.sections import ConfigError
from turntree.agents.verl.settings import EngineSettings, RunSettings


def test_an_unknown_engine_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'thread' in .*engine_kwargs.turntree; did you mean 'threads'"):
        EngineSettings.parse({"thread": 2})


def test_an_unknown_setting_of_a_section_names_the_section() -> None:
    with pytest.raises(ConfigError, match=r"turntree\.speculation; did you mean 'max_nodes'"):
        EngineSettings.parse({"speculation": {"max_node": 4}})


def test_a_value_that_cannot_be_names_its_section() -> None:
    with pytest.raises(ConfigError, match=r"turntree\.forest: .*max_tokens must be from 1024 to 1073741824, got 0"):
        EngineSettings.parse({"forest": {"max_tokens": 0}})


def test_a_setting_that_the_store_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'context_windows' in .*forest; did you mean 'context_window'"):
        EngineSettings.parse({"forest": {"context_windows": 8}})


def test_leader_first_is_off_until_it_is_asked_for() -> None:
    led = EngineSettings.parse({"speculation": {"leader_first": True}}).speculation
    assert led is not None
    assert led.leader_first
    assert EngineSettings.parse(None).speculation.leader_first is False


def test_speculation_is_on_by_default_and_null_switches_it_off() -> None:
    assert EngineSettings.parse(None).speculation is not None
    assert EngineSettings.parse({"speculation": {}}).speculation is not None
    assert EngineSettings.parse({"speculation": None}).speculation is None


def test_lists_of_yaml_become_the_tuples_of_the_store() -> None:
    settings = EngineSettings.parse({"forest": {"end_tokens": [2, 7]}})
    assert settings.forest.end_tokens == frozenset({2, 7})


def test_the_engine_gets_what_verl_decides_and_what_is_set_here() -> None:
    settings = EngineSettings.parse({"threads": 1, "speculation": {"max_nodes": 3}})
    config = settings.engine_config(max_batch=7, max_context=99, dtype="bfloat16", seed=5)
    assert (config.max_batch, config.max_context, config.dtype, config.seed) == (7, 99, "bfloat16", 5)
    assert config.threads == 1
    assert config.speculation is not None
    assert config.speculation.max_nodes == 3


def test_what_is_not_ours_in_rollout_custom_is_left_alone() -> None:
    assert RunSettings.parse({"other": {"x": 1}}).path is None
    assert RunSettings.parse(None).path is None


def test_reuse_is_off_until_a_run_asks_for_it() -> None:
    assert RunSettings.parse(None).reuse.mode is ReuseMode.NONE
    settings = RunSettings.parse({"turntree": {"reuse": {"mode": "lenient", "preset": "ppo", "top_k": 8}}})
    assert (settings.reuse.mode, settings.reuse.top_k) == (ReuseMode.LENIENT, 8)
    with pytest.raises(ConfigError, match=r"unknown key 'topk' in .*turntree\.reuse; did you mean 'top_k'"):
        RunSettings.parse({"turntree": {"reuse": {"topk": 8}}})


def test_weights_cannot_be_kept_nowhere() -> None:
    with pytest.raises(ConfigError, match="needs a run_dir"):
        RunSettings.parse({"turntree": {"save_policy_every": 2}})
