import json
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
from tables import table

from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.config import SCHEDULER, WORKER_EXTENSION, VllmEngineConfig, is_ours, on_accelerator
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DRAFTER, SECTION, DrafterSettings, speculative_config, with_forest
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


OURS = {"speculative_config": speculative_config(6)}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(compat, "version", lambda _: "0.24.0")
    return lambda found: monkeypatch.setattr(compat, "version", lambda _: found)


@pytest.mark.parametrize("version", ["0.24.0", "0.28.1+cpu"])
def test_on_one_rank_drafts_go_beside_asynchronous_scheduling(installed: Any, version: str) -> None:
    installed(version)
    given = on_accelerator(OURS, rows=8, ranks=1)
    assert given["scheduler_cls"] == SCHEDULER
    assert given["speculative_config"]["method"] == "ngram_gpu"
    assert given["speculative_config"]["num_speculative_tokens"] == 6
    assert max(given["compilation_config"]["cudagraph_capture_sizes"]) == 8 * 7
    config = {name: given[name] for name in ("speculative_config", "additional_config")}
    config["speculative_config"] = SimpleNamespace(**config["speculative_config"])
    assert is_ours(SimpleNamespace(**config))
    assert {"speculative_config": speculative_config(6)} == OURS


def test_what_the_user_gave_is_kept() -> None:
    user = OURS | {
        "compilation_config": {"level": 0},
        "max_num_batched_tokens": 512,
        "additional_config": {"other": 1, SECTION: {"adaptive": False}},
        "max_num_seqs": 4,
    }
    given = on_accelerator(user, rows=8, ranks=1)
    changed = {"scheduler_cls", "speculative_config", "additional_config"}
    assert {name: value for name, value in given.items() if name not in changed} == {
        name: value for name, value in user.items() if name not in changed
    }
    assert given["additional_config"]["other"] == 1
    assert given["additional_config"][SECTION]["adaptive"] is False


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}, {"method": "eagle", "model": "other"}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_other_drafters_and_none_are_left_alone(speculative: Any, ranks: int) -> None:
    user = {"speculative_config": speculative, "max_num_seqs": 4}
    assert on_accelerator(user, rows=8, ranks=ranks) == user


@pytest.mark.parametrize(
    ("version", "ranks", "more"),
    [
        ("0.24.0", 2, {}),
        ("0.32.0", 1, {}),
        ("0.2.4", 1, {}),
        ("0.24.0", 1, {"async_scheduling": False}),
        ("0.24.0", 1, {"scheduler_cls": "theirs"}),
    ],
    ids=["several ranks", "an unknown version", "another one", "no asynchronous scheduling", "another scheduler"],
)
def test_else_it_drafts_synchronously(installed: Any, version: str, ranks: int, more: dict[str, Any]) -> None:
    installed(version)
    given = on_accelerator(OURS | more, rows=8, ranks=ranks)
    assert given["speculative_config"] == {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": 6}
    assert given.get("scheduler_cls") == more.get("scheduler_cls")


def test_without_vllm_it_drafts_synchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> str:
        raise compat.PackageNotFoundError

    monkeypatch.setattr(compat, "version", gone)
    assert on_accelerator(OURS, rows=8, ranks=1)["speculative_config"] == OURS["speculative_config"]


@pytest.mark.parametrize(
    ("speculative", "additional"),
    [
        (None, {SECTION: {}}),
        (SimpleNamespace(method="custom_class"), {SECTION: {}}),
        (SimpleNamespace(method="ngram_gpu"), {}),
        (SimpleNamespace(method="ngram_gpu"), None),
    ],
)
def test_a_configuration_of_vllms_own_drafter_is_not_ours(speculative: Any, additional: Any) -> None:
    assert not is_ours(SimpleNamespace(speculative_config=speculative, additional_config=additional))
