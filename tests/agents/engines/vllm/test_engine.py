"""vLLM itself behind the engine protocol, with turntree's drafter in it: one engine for the whole module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine_speed import soon
from tiny_vllm import ENVIRONMENT, chosen, laws_of, race, save_policy

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, ScoringEngine
from turntree.agents.engines.vllm.config import VllmEngineConfig
from turntree.agents.engines.vllm.engine import VllmEngine
from turntree.agents.engines.vllm.parameters import UnsupportedSampling
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.reuse_config import ReuseConfig, ReuseMode
from turntree.spec_tree import DialogueState
from turntree.spec_tree.transforms import Transforms, law

pytestmark = pytest.mark.vllm

CONTEXT, BLOCK = 160, 32
PROMPT = tuple(range(10, 45))
"""Longer than a block of keys and values."""
SEEDED = Sampling(max_tokens=12, seed=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    patch = pytest.MonkeyPatch()
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    config = VllmEngineConfig(
        max_batch=8,
        max_context=CONTEXT,
        dtype="float32",
        kv_cache_bytes=1 << 26,
        speculative_config=speculative_config(4),
        seed=0,
        engine_args={
            "skip_tokenizer_init": True,
            "block_size": BLOCK,
            # Timing decides nothing.
            "additional_config": DrafterSettings(min_probability=0.0, adaptive=False).to_additional_config(),
        },
    )
    with VllmEngine(folder, config=config) as started:
        yield started
    patch.undo()


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_it_is_an_engine_that_scores(engine: VllmEngine) -> None:
    assert isinstance(engine, ScoringEngine)
    assert engine.vocabulary == 96


async def test_greedy_turns_are_the_models_most_probable_tokens(engine: VllmEngine, model: Any) -> None:
    turn = await engine.generate(PROMPT, Sampling(temperature=0, max_tokens=10))
    laws = laws_of(model, PROMPT, turn.token_ids)
    assert turn.token_ids == tuple(laws.argmax(-1)[:-1].tolist())
    assert turn.logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)
    assert turn.finish_reason is FinishReason.LENGTH


async def test_a_seeded_turn_is_what_the_noise_says_of_the_models_law(engine: VllmEngine, model: Any) -> None:
    turn = await engine.generate(PROMPT, SEEDED)
    laws = laws_of(model, PROMPT, turn.token_ids)
    assert list(turn.token_ids) == race(laws, 7, len(turn.token_ids))
    assert turn.logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)


async def test_a_seed_says_the_same_alone_in_a_batch_and_with_drafts(engine: VllmEngine) -> None:
    state = DialogueState.from_tokens(PROMPT, task="seeds")
    alone = [await engine.generate(PROMPT, replace(SEEDED, seed=n), state=state) for n in range(6)]
    again = await asyncio.gather(*(engine.generate(PROMPT, replace(SEEDED, seed=n), state=state) for n in range(6)))
    assert [turn.token_ids for turn in again] == [turn.token_ids for turn in alone]
    assert len({turn.token_ids for turn in alone}) > 1  # control: seeds do differ
    assert sum(turn.draft.accepted for turn in again) > 0
    assert sum(turn.draft.verify_steps for turn in again) < sum(len(turn.token_ids) for turn in again)


async def test_a_turn_is_replayed_by_drafting_it_with_its_seed(engine: VllmEngine) -> None:
    prompt = (*PROMPT, 3)
    turn = await engine.generate(prompt, replace(SEEDED, seed=11))
    replayed = await engine.generate(prompt, replace(SEEDED, seed=11), draft=turn.token_ids)
    assert replayed.token_ids == turn.token_ids
    # The first token comes with the prompt; the rest in drafts of four.
    assert replayed.draft.accepted >= len(turn.token_ids) - 1 - replayed.draft.verify_steps
    assert replayed.draft.verify_steps <= 1 + -(-(len(turn.token_ids) - 1) // 5)


async def test_a_wrong_guess_changes_nothing(engine: VllmEngine) -> None:
    turn = await engine.generate(PROMPT, replace(SEEDED, seed=12))
    wrong = tuple((token + 1) % 96 for token in turn.token_ids)
    assert (await engine.generate(PROMPT, replace(SEEDED, seed=12), draft=wrong)).token_ids == turn.token_ids


async def test_the_law_after_temperature_and_top_p_is_raced_and_reported(engine: VllmEngine, model: Any) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.6, max_tokens=8, seed=5, top_logprobs=3)
    turn = await engine.generate(PROMPT, sampling)
    scores = await engine.score(PROMPT, turn.token_ids, sampling, top=3)
    assert turn.behaviour_logprobs == pytest.approx(scores.logprobs, abs=1e-4)
    assert turn.top is not None
    assert scores.top is not None
    assert np.exp(turn.top.logprobs) == pytest.approx(np.exp(scores.top.logprobs[:-1]), abs=1e-4)
    laws = np.log(law(laws_of(model, PROMPT, turn.token_ids), Transforms(temperature=0.7)))
    assert scores.policy_logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)


async def test_given_tokens_are_scored_as_the_model_says(engine: VllmEngine, model: Any) -> None:
    tokens = (5, 6, 7, 8, 9)
    laws = laws_of(model, PROMPT, tokens)
    scores = await engine.score(PROMPT, tokens, Sampling(), top=4)
    assert scores.logprobs == pytest.approx(chosen(laws, tokens), abs=1e-4)
    assert scores.top is not None
    assert scores.top.ids.tolist() == np.argsort(-laws)[:, :4].tolist()
    assert scores.top.logprobs == pytest.approx(-np.sort(-laws)[:, :4], abs=1e-4)


async def test_scoring_reads_the_cache_as_far_as_nothing_is_asked_there(engine: VllmEngine, model: Any) -> None:
    tokens = tuple(10 + (40 + n) % 80 for n in range(2 * BLOCK))
    first = await engine.score(PROMPT, tokens, Sampling())
    second = await engine.score((*PROMPT, *tokens), (1, 2), Sampling())
    assert second.cached_tokens >= BLOCK
    # All of the tokens are in the cache now, whose log-probabilities vLLM does not give.
    third = await engine.score(PROMPT, tokens, Sampling())
    expected = chosen(laws_of(model, PROMPT, tokens), tokens)
    for scores in (first, third):
        assert scores.logprobs == pytest.approx(expected, abs=1e-4)


async def test_the_next_turn_finds_the_keys_and_values_of_the_last(engine: VllmEngine) -> None:
    prompt = tuple(10 + (50 + n) % 80 for n in range(3 * BLOCK))
    turn = await engine.generate(prompt, SEEDED)
    following = await engine.generate((*prompt, *turn.token_ids, 4), SEEDED)
    assert following.cached_tokens >= 3 * BLOCK


async def test_a_turn_ends_at_its_stop_token_and_at_nothing_else(engine: VllmEngine) -> None:
    turn = await engine.generate(PROMPT, SEEDED)
    stop = turn.token_ids[4]
    stopped = await engine.generate(PROMPT, replace(SEEDED, stop_token_ids=(stop,)))
    assert stopped.token_ids == turn.token_ids[: turn.token_ids.index(stop) + 1]
    assert stopped.finish_reason is FinishReason.STOP


async def test_a_turn_that_is_cancelled_is_aborted_in_vllm(engine: VllmEngine) -> None:
    task = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=CONTEXT)))
    await soon(lambda: engine.live)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await soon(lambda: not engine.live)


async def test_all_turns_can_be_aborted_and_keep_what_they_have(engine: VllmEngine) -> None:
    tasks = [asyncio.create_task(engine.generate((*PROMPT, n), Sampling(max_tokens=CONTEXT))) for n in range(4)]
    while engine.live < 4:
        await asyncio.sleep(0.01)
    aborted = await asyncio.to_thread(engine.abort_all)
    turns: list[Completion] = await asyncio.gather(*tasks)
    assert aborted == 4
    assert {turn.finish_reason for turn in turns} == {FinishReason.ABORT}
    assert all(len(turn.token_ids) == len(turn.logprobs) for turn in turns)


async def test_exact_reuse_begins_a_turn_with_an_earlier_one(engine: VllmEngine, model: Any) -> None:
    reuse = PrefixReuse(engine, ReuseConfig(mode=ReuseMode.EXACT, top_k=96), vocabulary=engine.vocabulary, seed=1)
    sampling = Sampling(max_tokens=10)
    prompts = [(*PROMPT, n) for n in range(4)]
    await asyncio.gather(*(reuse.generate(prompt, sampling) for prompt in prompts))
    reuse.close_step(trained=False)
    turns = await asyncio.gather(*(reuse.generate(prompt, sampling) for prompt in prompts))
    # The policy did not change: its own ratio is 1, and all that was recorded stays.
    assert reuse.stats.tickets == 4
    assert reuse.stats.reused == reuse.stats.offered == 40
    for prompt, turn in zip(prompts, turns, strict=True):
        assert set(turn.levels) == {"B"}
        assert turn.logprobs == pytest.approx(chosen(laws_of(model, prompt, turn.token_ids), turn.token_ids), abs=1e-3)


async def test_seeded_replay_goes_on_where_a_changed_policy_differs(
    engine: VllmEngine, model: Any, folder: Path
) -> None:
    """Last of the tests that need the first weights: it changes them, and puts them back."""
    import torch

    reuse = PrefixReuse(engine, ReuseConfig(mode=ReuseMode.REPLAY), vocabulary=engine.vocabulary, seed=1)
    prompts = [(*PROMPT, n) for n in range(6)]
    sampling = Sampling(max_tokens=12)
    first = await asyncio.gather(*(reuse.generate(prompt, sampling) for prompt in prompts))
    new = {name: tensor + 0.02 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    await asyncio.to_thread(engine.update_weights, list(new.items()))
    reuse.close_step()
    second = await asyncio.gather(*(reuse.generate(prompt, sampling) for prompt in prompts))
    assert 0 < reuse.stats.reused < reuse.stats.offered
    assert {turn.weights_version for turn in second} == {engine.version} != {turn.weights_version for turn in first}
    changed = type(model)(model.config).eval()
    changed.load_state_dict(new)
    for prompt, turn in zip(prompts, second, strict=True):
        laws = laws_of(changed, prompt, turn.token_ids)
        assert turn.logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)
    # Plain decoding's own result: without the guess the same noise says the same.
    plain = await asyncio.gather(
        *(engine.generate(p, replace(sampling, seed=t.seed)) for p, t in _seeds(reuse, prompts))
    )
    assert [turn.token_ids for turn in plain] == [turn.token_ids for turn in second]
    await asyncio.to_thread(engine.update_weights, list(model.state_dict().items()))
    assert engine.version == 2
    again = await engine.generate(PROMPT, SEEDED)
    assert list(again.token_ids) == race(laws_of(model, PROMPT, again.token_ids), 7, 12)


def _seeds(reuse: PrefixReuse, prompts: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], Any]]:
    """The turns that the ledger holds, with the seeds that they were drawn by."""
    from turntree.agents.turn_storage import storage_key

    reuse.close_step()
    found = []
    for prompt in prompts:
        ticket = reuse.ledger.take(storage_key(prompt, Sampling(max_tokens=12)), pick=0)
        assert ticket is not None
        found.append((prompt, ticket.turn))
    return found


async def test_what_vllm_cannot_do_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(UnsupportedSampling, match="min_p"):
        await engine.generate(PROMPT, Sampling(min_p=0.1))
    with pytest.raises(ValueError, match="repetition_penalty=2"):
        await engine.score(PROMPT, (1,), Sampling(repetition_penalty=2.0))
    with pytest.raises(ValueError, match="the prompt is empty"):
        await engine.generate((), Sampling())
    with pytest.raises(ValueError, match=f"max_context is {CONTEXT}"):
        await engine.generate((1,) * CONTEXT, Sampling())


async def test_a_turn_goes_as_far_as_the_context(engine: VllmEngine) -> None:
    turn = await engine.generate((1,) * (CONTEXT - 5), Sampling(max_tokens=50, seed=1))
    assert len(turn.token_ids) == 5
    assert turn.finish_reason is FinishReason.LENGTH
