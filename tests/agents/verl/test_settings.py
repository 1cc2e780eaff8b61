from __future__ import annotations

from typing import Any

import pytest

from turntree.agents.reuse_config import ReuseMode
from turntree.agents.verl.sections import ConfigError
from turntree.agents.verl.settings import EngineSettings, RunSettings


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (EngineSettings, {"thread": 2}, r"unknown key 'thread' in .*engine_kwargs.turntree; did you mean 'threads'"),
        (EngineSettings, {"speculation": {"max_node": 4}}, r"turntree\.speculation; did you mean 'max_nodes'"),
        (EngineSettings, {"forest": {"max_tokens": 0}}, r"turntree\.forest: .*from 1024 to 1073741824, got 0"),
        (EngineSettings, {"forest": {"context_windows": 8}}, r"in .*forest; did you mean 'context_window'"),
        (RunSettings, {"turntree": {"reuse": {"topk": 8}}}, r"'topk' in .*turntree\.reuse; did you mean 'top_k'"),
        (RunSettings, {"turntree": {"save_policy_every": 2}}, "needs a run_dir"),  # weights cannot be kept nowhere
    ],
)
def test_what_cannot_be_set_names_its_section_and_the_nearest(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind.parse(values)


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
