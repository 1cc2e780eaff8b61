import json
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
from tables import table

from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.config import WORKER_EXTENSION, VllmEngineConfig
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config, with_forest
from turntree.spec_tree import ForestConfig


def test_the_engine_says_what_turntree_reads_and_each_draws_its_own_noise() -> None:
    arguments = VllmEngineConfig(max_batch=3, max_context=99, seed=4).to_engine_args("m", on_cpu=True)
    wanted = {"model": "m", "max_num_seqs": 3, "max_model_len": 99, "seed": 4, "max_logprobs": -1}
    wanted |= {"logprobs_mode": "processed_logprobs", "worker_extension_cls": WORKER_EXTENSION}
    assert wanted.items() <= arguments.items()
    assert not {"speculative_config", "kv_cache_memory_bytes"} & arguments.keys()
    assert len({VllmEngineConfig().to_engine_args("m", on_cpu=True)["seed"] for _ in range(8)}) > 1


def test_the_model_is_compiled_where_there_is_an_accelerator() -> None:
    assert VllmEngineConfig().to_engine_args("m", on_cpu=True)["enforce_eager"] is True
    assert VllmEngineConfig().to_engine_args("m", on_cpu=False)["enforce_eager"] is False
    assert VllmEngineConfig(enforce_eager=False).to_engine_args("m", on_cpu=True)["enforce_eager"] is False


def test_arguments_of_vllm_go_through_but_not_those_that_turntree_sets() -> None:
    config = VllmEngineConfig(engine_args={"tensor_parallel_size": 2})
    assert config.to_engine_args("m", on_cpu=False)["tensor_parallel_size"] == 2
    with pytest.raises(ValueError, match="logprobs_mode"):
        VllmEngineConfig(engine_args={"logprobs_mode": "raw_logprobs"})
    with pytest.raises(ValueError, match="max_batch must be at least 1, got 0"):
        VllmEngineConfig(max_batch=0)


def test_settings_come_back_from_vllm_s_configuration_as_they_went_in() -> None:
    forest = ForestConfig(rollouts_per_state=4, end_tokens=frozenset({7, 9}))
    settings = DrafterSettings(min_probability=0.25, adaptive=False, max_step_tokens=40, forest=forest)
    travelled = json.loads(json.dumps(settings.to_additional_config()))
    assert DrafterSettings.from_additional_config(travelled) == settings
    assert DrafterSettings.from_additional_config({"other": 1}) == DrafterSettings()
    assert DrafterSettings.from_additional_config(None) == DrafterSettings()
    assert resolve_name(speculative_config(6)["model"]) is ForestDrafter
    assert speculative_config(6)["num_speculative_tokens"] == 6


def test_a_store_s_bound_leaves_what_else_a_configuration_says() -> None:
    forest, own = ForestConfig(max_tokens=4096), ForestConfig(max_tokens=2048)
    assert with_forest(None, forest) == DrafterSettings(forest=forest).to_additional_config()
    kept = with_forest({"other": 1, "turntree": {"adaptive": False}}, forest)
    assert kept["other"] == 1
    assert DrafterSettings.from_additional_config(kept) == DrafterSettings(adaptive=False, forest=forest)
    named = with_forest(DrafterSettings(forest=own).to_additional_config(), forest)
    assert DrafterSettings.from_additional_config(named).forest == own
    assert with_forest({"turntree": None}, forest) == with_forest(None, forest)
    with pytest.raises(ValueError, match="additional_config must be a mapping, got 3"):
        with_forest(3, forest)


@pytest.mark.parametrize(("section", "message"), table(__file__, "impossible_sections"))
def test_what_cannot_be_is_refused_by_name(section: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrafterSettings.from_additional_config({"turntree": section})


@pytest.mark.parametrize(
    ("ignore_eos", "named", "expected"),
    [(False, 2, {2, 9}), (True, None, {9}), (False, None, {2, 9})],
    ids=["the end token has a name", "it is to be ignored", "an older version has no name for it"],
)
def test_a_request_ends_at_its_stop_tokens_and_at_the_model_s_end(ignore_eos, named, expected):
    parameters = SimpleNamespace(
        stop_token_ids=[9], ignore_eos=ignore_eos, eos_token_id=named, all_stop_token_ids={2, 9}
    )
    assert compat.stop_tokens(parameters) == expected


def test_the_end_tokens_of_a_model_are_those_of_all_its_files() -> None:
    config = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": [3, 4]}, hf_text_config=SimpleNamespace(eos_token_id=5)
    )
    assert compat.end_tokens(config) == {3, 4, 5}
    config = SimpleNamespace(try_get_generation_config=lambda: None, hf_text_config=SimpleNamespace())
    assert compat.end_tokens(config) == set()


def test_a_runner_without_a_gate_is_left_as_it_is() -> None:
    runner = SimpleNamespace(max_model_len=64)
    compat.draft_near_the_end(runner, 8)
    assert vars(runner) == {"max_model_len": 64}
