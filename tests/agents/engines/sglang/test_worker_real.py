"""The worker inside a real engine on the CPU."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_sglang import CPU_ARGS, flush, prepare
from machine_speed import patience
from policy_law import PolicyLaw, chi_square
from tiny_llama import save_tiny_llama

from turntree.agents.engines.state_wire import KEY, to_wire
from turntree.spec_tree import DialogueState
from turntree.spec_tree.folder_exchange import FOLDER, FolderExchange
from turntree.spec_tree.transforms import Transforms, law
from turntree.spec_tree.turn_batch import TurnBatch

pytestmark = pytest.mark.sglang

PROMPTS = [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11, 12]]
LENGTH = 24


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PolicyLaw]:
    folder = save_tiny_llama(tmp_path_factory.mktemp("policy"))
    return folder, PolicyLaw(folder)


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exchange")


@pytest.fixture(scope="module")
def engine(policy: tuple[Any, PolicyLaw], exchange: Path) -> Iterator[Any]:
    sglang = pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    prepare({"adaptive": False, "min_probability": 0.02})
    os.environ[FOLDER] = str(exchange)
    arguments = {**CPU_ARGS, "max_running_requests": 48}
    made = sglang.Engine(
        model_path=str(policy[0]),
        skip_tokenizer_init=True,
        speculative_algorithm="TURNTREE",
        speculative_num_draft_tokens=8,
        **arguments,
    )
    del os.environ[FOLDER]
    yield made
    made.shutdown()


@pytest.fixture
def reference(policy: tuple[Any, PolicyLaw]) -> PolicyLaw:
    return policy[1]


def params(state: int, length: int = LENGTH, **sampling: Any) -> dict[str, Any]:
    wire = to_wire(DialogueState(exact=state, task=str(state)))
    return {"max_new_tokens": length, "ignore_eos": True, "custom_params": {KEY: wire}, **sampling}


def update(engine: Any, name: str, weight: Any) -> None:
    """SGLang 0.5.23 wants to be told when an update begins and ends."""
    told = hasattr(engine, "begin_weight_update")
    if told:
        engine.begin_weight_update()
    engine.update_weights_from_tensor([(name, weight)])
    if told:
        engine.end_weight_update()


def resolved(**arguments: Any) -> None:
    """Look through a server's arguments: SGLang 0.5.12 does when they are made, 0.5.23 when it is asked."""
    from sglang.srt.server_args import ServerArgs

    made = ServerArgs(**arguments)
    if hasattr(made, "resolve_once"):
        made.resolve_once()


def figures(engine: Any) -> dict[str, Any]:
    return engine.get_server_info()["internal_states"][0]["turntree"]


def greedy_round(engine: Any, base: int) -> tuple[list[list[int]], int, list[list[float]]]:
    """Tokens, verify steps and log-probabilities of the three prompts at states of their own."""
    sampling = [params(base + row, temperature=0) for row in range(len(PROMPTS))]
    out = engine.generate(input_ids=PROMPTS, sampling_params=sampling, return_logprob=True)
    logprobs = [[entry[0] for entry in o["meta_info"]["output_token_logprobs"]] for o in out]
    return [o["output_ids"] for o in out], sum(o["meta_info"]["spec_verify_ct"] for o in out), logprobs


def test_greedy_turns_and_their_log_probabilities_are_plain_decodings(engine, reference):
    wanted = [reference.greedy(prompt, LENGTH) for prompt in PROMPTS]
    steps = []
    for _ in range(3):
        tokens, verified, logprobs = greedy_round(engine, 100)
        assert tokens == wanted
        for prompt, turn, found in zip(PROMPTS, wanted, logprobs, strict=True):
            assert found == pytest.approx(reference.logprobs(prompt, turn), abs=2e-4)
        steps.append(verified)
    assert steps[-1] <= len(PROMPTS) * LENGTH / 4
    assert steps[-1] < steps[0]


def test_what_was_drafted_and_kept_comes_back_with_each_turn(engine):
    out = engine.generate(input_ids=PROMPTS[0], sampling_params=params(100, temperature=0))
    drafted, accepted = out["meta_info"]["turntree_drafted"], out["meta_info"]["turntree_accepted"]
    assert len(drafted) == len(accepted) == out["meta_info"]["spec_verify_ct"]
    assert 1 + sum(a + 1 for a in accepted) == LENGTH
    assert all(a <= d <= 7 for a, d in zip(accepted, drafted, strict=True))
    assert sum(accepted) > 0


def test_a_turn_ends_at_a_stop_token_that_was_drafted(engine, reference):
    wanted = reference.greedy(PROMPTS[1], LENGTH)
    stop = wanted[9]
    first = wanted.index(stop)
    for _ in range(2):
        sampling = params(101, temperature=0, stop_token_ids=[stop], ignore_eos=False)
        out = engine.generate(input_ids=PROMPTS[1], sampling_params=sampling)
        assert out["output_ids"] == wanted[: first + 1]


SHORT, DRAWS = 3, 4800
LAWS = {
    "temperature": ({"temperature": 1.0}, Transforms()),
    "top_p": ({"temperature": 1.3, "top_p": 0.8}, Transforms(temperature=1.3, top_p=0.8)),
    "top_k": ({"temperature": 1.3, "top_k": 6}, Transforms(temperature=1.3, top_k=6)),
}


@pytest.mark.parametrize("name", LAWS)
def test_drafts_do_not_move_the_law(engine, reference, name):
    sampling, transforms = LAWS[name]
    state = 200 + list(LAWS).index(name)
    engine.generate(input_ids=[PROMPTS[0]] * 48, sampling_params=params(state, SHORT, **sampling))
    before = figures(engine)
    out = engine.generate(input_ids=[PROMPTS[0]] * DRAWS, sampling_params=params(state, SHORT, **sampling))
    after = figures(engine)
    assert after["accepted"] - before["accepted"] > DRAWS / 4
    exact = reference.turns(PROMPTS[0], SHORT, lambda logits: law(logits, transforms))
    assert chi_square(Counter(tuple(o["output_ids"]) for o in out), exact) > 1e-3


def test_log_probabilities_of_sampled_tokens_are_the_policys(engine, reference):
    out = engine.generate(input_ids=[PROMPTS[2]] * 8, sampling_params=params(210, temperature=1.0), return_logprob=True)
    for o in out:
        found = [entry[0] for entry in o["meta_info"]["output_token_logprobs"]]
        assert found == pytest.approx(reference.logprobs(PROMPTS[2], o["output_ids"]), abs=2e-4)


def test_a_second_turn_finds_the_first_one_in_the_cache(engine):
    flush(engine)
    prompt, cached = list(range(1, 20)), []
    for turn in range(3):
        out = engine.generate(input_ids=prompt, sampling_params=params(300 + turn, 12, temperature=0))
        cached.append((out["meta_info"]["cached_tokens"], len(prompt)))
        prompt = [*prompt, *out["output_ids"], 3, 4, 5]
    assert cached[0][0] == 0
    assert all(found >= length - 3 - 1 - 1 for found, length in cached[1:])


def test_the_store_outlives_flush_weights_and_release(engine, reference, policy):
    import torch

    greedy_round(engine, 400)
    flush(engine)  # where passes may overlap, the store hears of the last one when the next begins or none is left
    held = figures(engine)["forest_rollouts"]
    tokens, steps, _ = greedy_round(engine, 400)
    assert steps <= len(PROMPTS) * LENGTH / 4
    flush(engine)
    name = "lm_head.weight"
    weight = reference._model.get_parameter(name).detach().float()
    moved = torch.roll(weight, 1, 0)
    try:
        update(engine, name, moved)
        other, _, _ = greedy_round(engine, 400)
        assert [turn[0] for turn in other] == [(turn[0] + 1) % 32 for turn in tokens]
    finally:
        flush(engine)
        update(engine, name, weight)
    flush(engine)
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    again, steps, _ = greedy_round(engine, 400)
    assert again == tokens
    assert steps <= len(PROMPTS) * LENGTH / 4
    flush(engine)
    assert figures(engine)["forest_rollouts"] == held + 9


def test_an_aborted_turn_is_not_kept_and_the_engine_goes_on(engine, reference):
    flush(engine)
    before = figures(engine)

    async def abandon() -> int:
        sampling = params(500, 400, temperature=0)
        stream = await engine.async_generate(input_ids=PROMPTS[0], sampling_params=sampling, rid="lost", stream=True)
        said = 0
        async for chunk in stream:
            said = chunk["meta_info"]["completion_tokens"]
            engine.tokenizer_manager.abort_request(rid="lost")
        return said

    assert 1 < engine.loop.run_until_complete(asyncio.wait_for(abandon(), patience(60))) < 400
    tokens, _, _ = greedy_round(engine, 510)
    assert tokens == [reference.greedy(prompt, LENGTH) for prompt in PROMPTS]
    flush(engine)
    after = figures(engine)
    assert after["forest_live"] == 0
    assert after["forest_rollouts"] - before["forest_rollouts"] == len(PROMPTS)


def test_two_hundred_requests_join_and_leave(engine, reference):
    rng = np.random.default_rng(0)
    kinds = [rng.integers(0, 31, int(rng.integers(2, 12))).tolist() for _ in range(10)]
    wanted = [reference.greedy(prompt, 20) for prompt in kinds]
    which = rng.integers(0, len(kinds), 200)
    lengths = rng.integers(1, 21, 200)
    sampling = [params(600 + int(k), int(n), temperature=0) for k, n in zip(which, lengths, strict=True)]
    out = engine.generate(input_ids=[kinds[k] for k in which], sampling_params=sampling)
    assert [o["output_ids"] for o in out] == [wanted[k][:n] for k, n in zip(which, lengths, strict=True)]
    flush(engine)
    assert figures(engine)["forest_live"] == 0
    verified = sum(o["meta_info"].get("spec_verify_ct", 0) for o in out)
    assert verified < (lengths - 1).sum() / 2


def test_turns_of_another_engine_come_in_at_a_flush(engine, reference, exchange):
    turn = reference.greedy([9, 8, 7, 6, 5], LENGTH)
    state = DialogueState(exact=800, task="800")
    other = FolderExchange(exchange, "other")
    other.swap(TurnBatch.of([state], [turn]), 0)
    flush(engine)
    out = engine.generate(input_ids=[9, 8, 7, 6, 5], sampling_params=params(800, temperature=0))
    assert out["output_ids"] == turn
    assert out["meta_info"]["spec_verify_ct"] <= 5
    flush(engine)
    heard = other.swap(TurnBatch.of([], []), 1).batches
    assert turn in [list(said) for batch in heard for said in batch.turns]


def test_penalties_are_refused_and_nobody_else_suffers(engine):
    with pytest.raises(ValueError, match="repetition_penalty must be"):
        engine.generate(input_ids=PROMPTS[0], sampling_params={"repetition_penalty": 1.2, "max_new_tokens": 4})
    assert len(engine.generate(input_ids=PROMPTS[0], sampling_params=params(700, 4))["output_ids"]) == 4


@pytest.mark.parametrize(
    ("argument", "value"),
    [("speculative_accept_threshold_single", 0.9), ("page_size", 16), ("speculative_num_draft_tokens", 0)],
)
def test_a_server_that_would_be_wrong_does_not_start(engine, policy, argument, value):
    good = {**CPU_ARGS, "model_path": str(policy[0]), "skip_tokenizer_init": True, "speculative_algorithm": "TURNTREE"}
    resolved(**good)
    with pytest.raises(ValueError, match=argument):
        resolved(**{**good, argument: value})
