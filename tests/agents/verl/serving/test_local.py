import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from machine_speed import patience
from one_server import start_server
from real_training import read_lines
from safetensors.torch import load_file
from tables import table

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TurnRequest
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.serving.local import (
    TurntreeReplica,
    TurntreeServer,
    _device_sharing,
    to_sampling,
    to_token_output,
)
from turntree.agents.verl.serving.turns import NumberedRequest
from turntree.spec_tree import DialogueState


@pytest.fixture(params=[{}])
def server(tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TurntreeServer]:
    run = {"run_dir": str(tmp_path), "save_policy_every": 2, **request.param}
    server = start_server(tiny_model, run=run, speculation={"min_probability": 0.0})
    yield server
    server.engine.close()


@pytest.fixture
def weights(tiny_model: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(tiny_model).state_dict())


async def ask(server: TurntreeServer, *prompt: int, **parameters: Any) -> Any:
    return await server.generate(list(prompt), {"temperature": 1.0, "max_tokens": 4, **parameters}, "r")


async def play(server: TurntreeServer, *prompt: int, seed: int) -> Completion:
    request = TurnRequest(prompt, Sampling(max_tokens=4, seed=seed), state=DialogueState.from_tokens(prompt))
    life = await server.submit_turns("one", [NumberedRequest(seed, request)])
    (reply,) = await server.collect_turns("one", life)
    assert reply.completion is not None
    return reply.completion


def test_verls_sampling_parameters_are_read() -> None:
    sampling = to_sampling(
        {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.0, "logprobs": True, "stop_token_ids": [4]},
        default_max_tokens=11,
    )
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens, sampling.stop_token_ids) == (0.5, 3, 11, (4,))


@pytest.mark.parametrize(("parameters", "message"), table(__file__, "impossible_sampling"))
def test_what_the_engine_cannot_do_is_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_sampling(parameters, default_max_tokens=1)


async def test_a_turn_is_token_in_and_token_out(server: TurntreeServer) -> None:
    output = await ask(server, 1, 2, 3, seed=5)
    assert len(output.token_ids) == len(output.log_probs) == 4
    assert all(logprob <= 0 for logprob in output.log_probs)
    assert (await ask(server, 1, 2, 3, seed=5)).token_ids == output.token_ids
    with pytest.raises(ConfigError, match="only text"):
        await server.generate([1], {}, "r", image_data=["x"])


async def test_new_weights_change_the_policy_and_keep_the_store(server, weights):
    await server.set_global_steps(0)
    before = await play(server, 1, 2, 3, seed=5)
    kept = server.engine.forest.stats().rollouts
    assert kept > 0
    await server.update_weights({name: torch.randn_like(value) for name, value in weights.items()})
    await server.set_global_steps(1)
    after = await play(server, 1, 2, 3, seed=5)
    assert after.logprobs != before.logprobs
    assert after.weights_version == 1
    assert server.engine.forest.stats().rollouts > kept


async def test_a_step_is_booked_when_its_weights_are_replaced(server, weights, tmp_path):
    for step in range(3):
        await server.update_weights({name: value + step for name, value in weights.items()})
        await server.set_global_steps(step)
        for _ in range(step + 1):
            await ask(server, 1, 2, 3)
    rows = read_lines(tmp_path / "engine.jsonl")
    assert [(row["step"], row["requests"], row["tokens"]) for row in rows] == [(1, 1, 4), (2, 2, 8)]
    assert rows[0]["tokens_per_forward_pass"] == rows[0]["tokens"] / rows[0]["verify_steps"]
    saved = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert saved == ["step_000001.safetensors", "step_000003.safetensors"]
    name = next(iter(weights))
    assert torch.equal(load_file(tmp_path / "weights" / saved[1])[name], weights[name] + 2)


def test_verl_is_told_of_a_turn_with_its_counters() -> None:
    turn = Completion(
        token_ids=(1, 2),
        logprobs=(-1.0, -2.0),
        finish_reason=FinishReason.LENGTH,
        draft=DraftStats(verify_steps=1, drafted=3, accepted=2),
        cached_tokens=5,
    )
    told = to_token_output(turn, 7)
    assert (told.token_ids, told.log_probs, told.stop_reason) == ([1, 2], [-1.0, -2.0], "length")
    counts = {"spec_num_draft_tokens": 3, "spec_num_accepted_tokens": 2, "spec_num_verify_steps": 1}
    assert told.extra_fields == {"global_steps": 7, "num_cached_tokens": 5, **counts}


@pytest.mark.parametrize(
    "server", [{"reuse": {"mode": mode, "top_k": 16}} for mode in ("same_seed", "rejection_sampling")], indirect=True
)
async def test_turns_of_the_last_step_are_used_again_once_it_has_been_trained_on(server, weights, tmp_path):
    await server.set_global_steps(0)
    first = await play(server, 1, 2, 3, seed=5)
    assert set(first.levels) <= {"A"}
    await server.update_weights({name: value * 1.01 for name, value in weights.items()})
    await server.set_global_steps(1)
    again = await play(server, 1, 2, 3, seed=6)
    assert again.levels[0] == "C"
    assert len(again.token_ids) == len(again.behaviour_logprobs) == 4
    await server.set_global_steps(2)
    rows = read_lines(tmp_path / "engine.jsonl")
    assert [row["reuse_drafted_turns"] for row in rows] == [0, 1]
    assert "exactness/exact_entropy_z" in rows[0]
    assert "exactness/trained_turns_entropy_z" in rows[1]


async def test_requests_wait_while_generation_is_stopped_or_are_rejected_where_verl_asks_for_that(server):
    await server.abort_all_requests()
    waiting = asyncio.create_task(ask(server, 1, 2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await server.resume_generation()
    assert len((await asyncio.wait_for(waiting, patience(10))).token_ids) == 4
    await server.abort_all_requests(reject_request=True)
    with pytest.raises(RuntimeError, match="until resume_generation"):
        await ask(server, 1, 2)


async def test_no_turn_is_of_two_weights(server: TurntreeServer, weights: dict[str, torch.Tensor]) -> None:
    requests = [NumberedRequest(number, TurnRequest((1, 2), Sampling(max_tokens=28, seed=number))) for number in (1, 2)]
    life = await server.submit_turns("one", requests[:1])
    await server.update_weights(weights)
    assert not server._turns.batches.running
    (before,) = await server.collect_turns("one", life)
    late = asyncio.create_task(server.submit_turns("one", requests[1:]))
    await asyncio.sleep(0.05)
    assert not late.done(), "not before the last bucket"
    await server.set_global_steps(1)
    await asyncio.wait_for(late, patience(10))
    (after,) = await server.collect_turns("one", life)
    assert before.completion is not None
    assert after.completion is not None
    assert (before.completion.weights_version, after.completion.weights_version) == (0, 1)


async def test_the_caches_can_be_dropped_at_any_time(server: TurntreeServer) -> None:
    await ask(server, 1, 2, 3)
    await server.sleep()
    await server.wake_up(tags=["weights"])
    await server.resume_kv_cache()
    assert (await ask(server, 1, 2, 3)).extra_fields["num_cached_tokens"] == 0


async def test_a_server_that_gives_its_memory_away_samples_with_the_weights_that_came_meanwhile(tiny_model, weights):
    server = start_server(tiny_model, run={"run_ahead": {"enabled": True}}, free_cache_engine=True)
    cache = server.engine._core.cache
    before = await ask(server, 1, 2, 3, seed=5)
    assert cache.bytes > 0
    await server.sleep()
    assert cache.bytes == 0
    await server.wake_up(tags=["weights"])
    await server.update_weights({name: value * 1.5 for name, value in weights.items()})
    await server.set_global_steps(1)
    waiting = asyncio.create_task(ask(server, 1, 2, 3, seed=5))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert cache.bytes == 0
    await server.wake_up(tags=["kv_cache"])
    after = await asyncio.wait_for(waiting, patience(10))
    assert after.log_probs != pytest.approx(before.log_probs, abs=1e-5)
    for wake in (server.wake_up, server.resume_kv_cache):
        await server.sleep()
        await wake()
        again = await asyncio.wait_for(ask(server, 1, 2, 3, seed=5), patience(10))
        assert again.token_ids == after.token_ids
        assert again.log_probs == pytest.approx(after.log_probs, abs=1e-5)  # a draft changes the shapes of the pass
    server.engine.close()


async def test_a_server_says_what_it_runs_on(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    start_server(tiny_model, run={}).engine.close()
    assert re.search(r"engine replica 0 runs on .*cores in float32, with at most 4 requests at once", caplog.text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_a_gpu_that_the_server_does_not_see_is_named(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=r"device=cuda needs a GPU, .* sees none"):
        start_server(tiny_model, run={}, device="cuda")


def test_a_server_sees_the_device_of_its_trainer_and_on_the_cpu_nothing_is_changed(monkeypatch):
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    assert _device_sharing(["3"]) is None
    monkeypatch.setattr("turntree.agents.verl.serving.local.get_platform", PlatformCUDA)
    variables = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert _device_sharing(["3"]) == {"env_vars": variables}


async def test_a_replica_over_several_devices_is_refused() -> None:
    replica = TurntreeReplica.__new__(TurntreeReplica)
    replica.world_size = 2
    with pytest.raises(ConfigError, match=r"asks for 2; set .*tensor_model_parallel_size"):
        await replica.launch_servers()
