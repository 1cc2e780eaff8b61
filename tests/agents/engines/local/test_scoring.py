import asyncio
from dataclasses import replace

import numpy as np
import pytest
from cores import CONFIG, AdversarialForest, tiny_llama
from machine_speed import soon
from plain_decoding import laws_along

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling, ScoringEngine, TurnRequest
from turntree.agents.errors import EngineAborted
from turntree.spec_tree import DialogueState

SAMPLINGS = [
    Sampling(max_tokens=12),
    Sampling(max_tokens=12, temperature=0.7, top_k=6, min_p=0.05),
    Sampling(max_tokens=12, top_p=0.8, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=-0.2),
    Sampling(max_tokens=12, temperature=0),
]


@pytest.mark.parametrize("chunk", [5, 1024])
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_scores_are_what_the_turn_was_drawn_with(prompts, sampling, chunk):
    config = replace(CONFIG, prefill_chunk=chunk)
    with LocalEngine(tiny_llama(), config=config, forest=AdversarialForest(32)) as engine:
        assert isinstance(engine, ScoringEngine)
        how = replace(sampling, top_logprobs=4)
        turns = await asyncio.gather(
            *(engine.generate(TurnRequest(p, replace(how, seed=i))) for i, p in enumerate(prompts))
        )
        engine.reset_prefix_cache()
        scores = await asyncio.gather(
            *(engine.score(p, t.token_ids, sampling, top=4) for p, t in zip(prompts, turns, strict=True)),
            *(engine.generate(TurnRequest(p, how)) for p in prompts),
        )
    for turn, found in zip(turns, scores, strict=False):
        np.testing.assert_allclose(found.logprobs, turn.behaviour_logprobs, atol=1e-9)
        np.testing.assert_allclose(found.policy_logprobs, turn.logprobs, atol=1e-9)
        assert sum(found.entropy) == pytest.approx(turn.draft.entropy, abs=1e-8)
        assert sum(found.entropy_variance) == pytest.approx(turn.draft.entropy_variance, abs=1e-8)
        assert -sum(found.logprobs) == pytest.approx(turn.draft.surprise, abs=1e-8)
        assert (found.top.ids.shape, turn.top.ids.shape) == ((13, 4), (12, 4))
        np.testing.assert_allclose(found.top.logprobs[:-1], turn.top.logprobs, atol=1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_scores_of_any_tokens_are_the_references(engine, prompts, sampling):
    tokens = np.random.default_rng(3).integers(0, 32, size=15).tolist()
    found = await engine.score(prompts[1], tokens, sampling, top=3)
    p = laws_along(tiny_llama(), prompts[1], tokens, sampling)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found.logprobs, np.log(p[range(15), tokens]), atol=1e-9)
        best = np.log(-np.sort(-p, axis=-1)[:, :3])
    np.testing.assert_allclose(found.top.logprobs, best, rtol=1e-5, atol=1e-6)
    shown = np.take_along_axis(p, found.top.ids.astype(np.int64), -1)
    np.testing.assert_allclose(shown, np.exp(best), atol=1e-6)


async def test_without_top_the_position_after_the_last_token_costs_nothing(engine, prompts):
    tokens = [1, 2, 3, 4]
    bare = await engine.score(prompts[0], tokens, Sampling())
    assert bare.top is None
    assert len(bare.logprobs) == len(bare.entropy) == 4
    assert engine.stats().scored == 4
    whole = await engine.score(prompts[0], tokens, Sampling(), top=1)
    assert whole.logprobs == pytest.approx(bare.logprobs, abs=1e-9)
    assert engine.stats().scored == 9


async def test_a_turn_that_continues_scored_tokens_finds_their_keys_and_values(engine, prompts):
    prompt, tokens = prompts[2], list(range(20))
    first = await engine.score(prompt, tokens, Sampling())
    assert (first.cached_tokens, engine.stats().forward_passes) == (0, 1)
    turn = await engine.generate(TurnRequest([*prompt, *tokens[:11]], Sampling(max_tokens=6, seed=1)))
    assert turn.cached_tokens == len(prompt) + 10
    again = await engine.score(prompt, tokens, Sampling())
    assert again.cached_tokens == len(prompt) - 1
    with LocalEngine(tiny_llama(), config=CONFIG) as fresh:
        alone = await fresh.generate(TurnRequest([*prompt, *tokens[:11]], Sampling(max_tokens=6, seed=1)))
    assert (alone.cached_tokens, turn.token_ids) == (0, alone.token_ids)
    assert turn.logprobs == pytest.approx(alone.logprobs, abs=1e-9)


async def test_scoring_runs_among_turns_and_leaves_the_store_alone(engine, prompts):
    seeded = [Sampling(max_tokens=20, seed=i) for i in range(len(prompts))]
    alone = [await engine.generate(TurnRequest(p, how)) for p, how in zip(prompts, seeded, strict=True)]
    before = engine.stats()
    turns = await asyncio.gather(
        *(engine.generate(TurnRequest(p, how)) for p, how in zip(prompts, seeded, strict=True)),
        *(engine.score(p, t.token_ids, Sampling()) for p, t in zip(prompts, alone, strict=True)),
    )
    assert [t.token_ids for t in turns[: len(alone)]] == [t.token_ids for t in alone]
    for found, turn in zip(turns[len(alone) :], alone, strict=True):
        np.testing.assert_allclose(found.logprobs, turn.behaviour_logprobs, atol=1e-9)
    used = engine.stats() - before
    assert used.tokens == used.scored == 200
    assert not engine.live


async def test_new_weights_in_the_middle_restart_scoring(prompts):
    new, tokens = tiny_llama(seed=1), list(range(25))
    core = EngineCore(Policy(tiny_llama()), LocalEngineConfig(max_context=128, prefill_chunk=6), None)
    done = []
    core.add(
        Request(
            prompt=prompts[0], sampling=Sampling(top_logprobs=2), state=DialogueState.from_tokens(prompts[0]), seed=0,
            deliver=lambda r: done.append(r.scores()), turn_draft=tokens, scoring=True,
        )
    )  # fmt: skip
    core.step()
    core.step()
    assert 0 < core.live[0].scored < 26
    core.update_weights({k: v.clone() for k, v in new.state_dict().items()}.items(), version=4)
    while core.busy:
        core.step()
    p = laws_along(new, prompts[0], tokens, Sampling())
    np.testing.assert_allclose(done[0].logprobs, np.log(p[range(25), tokens]), atol=1e-9)
    assert (done[0].top.ids.shape, done[0].weights_version) == ((26, 2), 4)


async def test_what_does_not_fit_is_not_scored_and_nothing_to_score_is_still_a_distribution(engine, prompts):
    with pytest.raises(ValueError, match=r"have 5 \+ 124 tokens, max_context is 128"):
        await engine.score(prompts[0], [1] * 124, Sampling())
    with pytest.raises(ValueError, match="the text to score holds token -1"):
        await engine.score(prompts[0], [-1], Sampling())
    assert len((await engine.score(prompts[0], [1] * 123, Sampling(), top=1)).logprobs) == 123
    assert (await engine.score(prompts[0], [], Sampling())).logprobs == ()
    found = await engine.score(prompts[0], [], Sampling(), top=32)
    assert found.top.ids.shape == (1, 32)
    assert np.exp(found.top.logprobs).sum() == pytest.approx(1.0, abs=1e-5)


async def test_aborted_scoring_says_so(model, prompts):
    with LocalEngine(model, config=replace(CONFIG, prefill_chunk=8)) as engine:
        tasks = [asyncio.create_task(engine.score(p, [1] * 60, Sampling())) for p in prompts * 8]
        await soon(lambda: engine.live, 120)
        await asyncio.to_thread(engine.abort_all)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(r, EngineAborted) for r in results)
    assert all(isinstance(r, EngineAborted) or len(r.logprobs) == 60 for r in results)
