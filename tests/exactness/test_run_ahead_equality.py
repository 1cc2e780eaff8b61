"""Turns that were made ahead are those of plain decoding by the policy of their step, token for token in float64."""

import asyncio
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cores import tiny_llama
from plain_decoding import plain_tokens
from run_ahead_turns import RunAhead

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.turn_drafts.turn_storage import storage_key
from turntree.spec_tree import SpecForest

PROMPTS = [(1, 2, 3 + number) for number in range(6)]
NEXT = 1000
"""Seeds of the next step's turns begin here, those of the running step at 0."""


def sampling(seed: int) -> Sampling:
    return Sampling(temperature=0.9, top_p=0.95, max_tokens=12, stop_token_ids=(5,), seed=seed)


def updated(model):
    """The model after a small step of training."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: value + 0.02 * value.abs().mean() * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in model.state_dict().items()
    }


def an_engine(max_batch: int = 4) -> LocalEngine:
    config = LocalEngineConfig(max_batch=max_batch, max_context=64, dtype="float64", threads=1)
    return LocalEngine(tiny_llama(), config=config, forest=SpecForest())


async def turns_of(one: LocalEngine | RunAhead, seed: int) -> list[Completion]:
    """A turn for each prompt, with seeds from ``seed`` on."""
    return await asyncio.gather(
        *(one.generate(TurnRequest(prompt, sampling(seed + i))) for i, prompt in enumerate(PROMPTS))
    )


def made_ahead(run_ahead: RunAhead, seed: int) -> list[asyncio.Task[Completion]]:
    """The same, begun ahead of the next step."""
    asked = [
        run_ahead.precompute(TurnRequest(prompt, sampling(seed + i), precomputed_for=2))
        for i, prompt in enumerate(PROMPTS)
    ]
    return [asyncio.create_task(turn) for turn in asked]


class Steps(NamedTuple):
    running: list[Completion]
    next: list[Completion]
    ahead: RunAhead


async def two_steps(*, precomputed_seed: int = NEXT, make: bool = True) -> Steps:
    """The running step's turns and, in the slots that they leave, those of the next one with seeds from
    ``precomputed_seed``; then new weights, then the next step's turns with seeds from ``NEXT``."""
    with an_engine() as engine:
        run_ahead = RunAhead(engine)
        tasks = []
        if make:
            tasks = made_ahead(run_ahead, precomputed_seed)
            await asyncio.sleep(0.02)
        running = await turns_of(run_ahead, 0)
        await asyncio.gather(*tasks)
        await run_ahead.pause()
        engine.update_weights(updated(tiny_llama()).items())
        run_ahead.close_step(1)
        run_ahead.resume()
        await run_ahead.begin_step(2)
        return Steps(running, await turns_of(run_ahead, NEXT), run_ahead)


def plain(turns: list[Completion]) -> list[bool]:
    """Which of the next step's turns the new policy says with the same seeds and nothing else."""
    model = tiny_llama()
    model.load_state_dict(updated(model))
    return [
        plain_tokens(model, list(prompt), turn.token_ids, sampling(NEXT + number), NEXT + number) == turn.token_ids
        for number, (prompt, turn) in enumerate(zip(PROMPTS, turns, strict=True))
    ]


@pytest.fixture(scope="module")
def with_ahead() -> Steps:
    return asyncio.run(two_steps())


@pytest.fixture(scope="module")
def without() -> Steps:
    return asyncio.run(two_steps(make=False))


def test_promoted_turns_are_what_the_new_policy_says_with_their_seeds(with_ahead: Steps):
    assert all(plain(with_ahead.next))
    stats = with_ahead.ahead.stats
    assert 0.3 * stats.offered < stats.promoted < stats.offered, "one update changes some tokens, and not most"


def test_the_tokens_are_those_of_a_run_that_makes_nothing_ahead_and_promoted_ones_are_level_b(with_ahead, without):
    assert [t.token_ids for t in with_ahead.next] == [t.token_ids for t in without.next]
    assert [t.token_ids for t in with_ahead.running] == [t.token_ids for t in without.running]
    passes = [sum(t.draft.verify_steps for t in steps.next) for steps in (with_ahead, without)]
    assert passes[0] < 0.7 * passes[1]
    assert {letter for turn in with_ahead.next for letter in turn.levels} == {"B"}
    assert {turn.levels for turn in with_ahead.running} == {""}
    assert {turn.levels for turn in without.next} == {""}


async def test_the_draft_alone_without_the_new_policys_word_is_noticed():
    """Control: what was made ahead, taken as it is."""
    with an_engine() as engine:
        assert not all(plain(await turns_of(engine, NEXT)))


async def test_noise_that_the_policy_was_trained_on_is_never_promoted():
    """Control: turns made ahead with seeds that the running step uses as well."""
    steps = await two_steps(precomputed_seed=0)
    stock = steps.ahead.store
    assert all(number in stock.trained for number in range(len(PROMPTS)))
    for number, prompt in enumerate(PROMPTS):
        key = storage_key(prompt, sampling(number))
        stock.put(key, number, (1, 2), step=9)
        assert stock.take(key, number) is None
    assert stock.counts.refused == len(PROMPTS)


@pytest.mark.parametrize("seed", range(3))
async def test_a_turn_given_up_at_any_moment_goes_on_as_if_it_had_not_been(seed: int):
    wait = np.random.default_rng(seed).uniform(0, 0.01, size=8)
    with an_engine(max_batch=2) as engine:
        tasks = made_ahead(RunAhead(engine), NEXT)
        for seconds in wait:
            await asyncio.sleep(seconds)
            await engine.abort_precomputed()
        turns = await asyncio.gather(*tasks)
        whole = await turns_of(engine, NEXT)
    assert [turn.token_ids for turn in turns] == [turn.token_ids for turn in whole]
