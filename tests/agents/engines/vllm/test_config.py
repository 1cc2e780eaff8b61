from __future__ import annotations

import pytest

from turntree.agents.engines.vllm.config import WORKER_EXTENSION, VllmEngineConfig


def test_the_engine_says_what_turntree_reads() -> None:
    arguments = VllmEngineConfig(max_batch=3, max_context=99, seed=4).to_engine_args("m", on_cpu=True)
    assert (arguments["model"], arguments["max_num_seqs"], arguments["max_model_len"]) == ("m", 3, 99)
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["max_logprobs"] == -1
    assert arguments["worker_extension_cls"] == WORKER_EXTENSION
    assert arguments["seed"] == 4
    assert "speculative_config" not in arguments
    assert "kv_cache_memory_bytes" not in arguments


def test_two_engines_without_a_seed_draw_other_noise() -> None:
    seeds = {VllmEngineConfig().to_engine_args("m", on_cpu=True)["seed"] for _ in range(8)}
    assert len(seeds) > 1


def test_the_model_is_compiled_where_there_is_an_accelerator() -> None:
    assert VllmEngineConfig().to_engine_args("m", on_cpu=True)["enforce_eager"] is True
    assert VllmEngineConfig().to_engine_args("m", on_cpu=False)["enforce_eager"] is False
    assert VllmEngineConfig(enforce_eager=False).to_engine_args("m", on_cpu=True)["enforce_eager"] is False


def test_arguments_of_vllm_go_through_but_not_those_that_turntree_sets() -> None:
    config = VllmEngineConfig(engine_args={"tensor_parallel_size": 2})
    assert config.to_engine_args("m", on_cpu=False)["tensor_parallel_size"] == 2
    with pytest.raises(ValueError, match="logprobs_mode"):
        VllmEngineConfig(engine_args={"logprobs_mode": "raw_logprobs"})


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_batch must be at least 1, got 0"):
        VllmEngineConfig(max_batch=0)
