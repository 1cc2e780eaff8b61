"""``SglangEngine`` over a real engine on the CPU; what is right follows from the formulas and the model's logits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from policy_law import PolicyLaw
from sglang_engines import CONTEXT, start
from tiny_llama import save_tiny_llama

from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.engine import SglangEngine
from turntree.agents.engines.sglang.parameters import UnsupportedSampling
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.reuse_config import ReuseConfig, ReuseMode
from turntree.spec_tree import DialogueState
from turntree.spec_tree.transforms import Transforms, law

pytestmark = pytest.mark.sglang

END = 31
"""The model's own end token."""
PROMPT = (1, 2, 3, 4, 5, 6)
LAWS = [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.9}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its context is as long as the engine's, the last place included."""
    return save_tiny_llama(tmp_path_factory.mktemp("policy"), positions=CONTEXT)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Any]:
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    with start(model) as made:
        yield made


def state(number: int) -> DialogueState:
    """Of an environment of its own: nothing that was said elsewhere is drafted there."""
    return DialogueState(exact=1000 + number, task="engine", env=str(number))


def law_of(sampling: dict[str, Any]) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Probabilities from logits, as ``Sampling(**sampling)`` asks."""
    return lambda logits: law(logits, Transforms(**sampling))


def test_the_reference_hears_where_a_token_stands(model):
    """Without it no test here would notice drafts that are verified one place off."""
    places = np.arange(len(PROMPT))
    logits = PolicyLaw(model).logits([PROMPT] * 2, [places.tolist(), (places + (places > 3)).tolist()])
    right, wrong = (law(row, Transforms()) for row in logits)
    assert abs(right - wrong).sum() / 2 > 0.03


def test_the_repairs_for_the_cpu_leave_the_process_its_torch(engine):
    """transformers finds out by a new tensor whether a model is only being laid out."""
    import torch

    with torch.device("meta"):
        assert torch.tensor([]).is_meta
    assert isinstance(torch.tensor, BuiltinFunctionType)


async def test_a_seeded_turn_is_the_same_with_and_without_drafts_and_as_a_replay(engine):
    steps = []
    for seed in range(6):
        sampling, other = Sampling(max_tokens=24, seed=seed), state(10 + seed)
        fresh = await engine.generate(PROMPT, sampling, state=other)
        drafted = await engine.generate(PROMPT, sampling, state=other)
        replayed = await engine.generate(PROMPT, sampling, state=state(30 + seed), draft=fresh.token_ids)
        misled = await engine.generate(PROMPT, sampling, state=state(50 + seed), draft=[7] * 24)
        assert drafted.token_ids == replayed.token_ids == misled.token_ids == fresh.token_ids
        assert drafted.logprobs == pytest.approx(fresh.logprobs, abs=2e-4)
        assert sum(replayed.accepted) == replayed.draft.accepted >= 18
        steps += [drafted.draft.verify_steps, replayed.draft.verify_steps]
    assert np.mean(steps) < 8
    assert (await engine.generate(PROMPT, Sampling(max_tokens=24, seed=99))).token_ids != fresh.token_ids


async def test_a_turn_says_which_of_its_tokens_were_drafted(engine):
    sampling = Sampling(max_tokens=24, temperature=0)
    await engine.generate(PROMPT, sampling, state=state(70))
    turn = await engine.generate(PROMPT, sampling, state=state(70))
    assert len(turn.accepted) == 24
    assert not turn.accepted[0]
    assert turn.draft.accepted <= turn.draft.drafted
    assert turn.draft.verify_steps == 24 - sum(turn.accepted) < 12


async def test_a_turn_records_the_law_that_drew_it(engine):
    for asked in LAWS:
        turn = await engine.generate(PROMPT, Sampling(max_tokens=6, seed=8, top_logprobs=3, **asked), state=state(80))
        scores = await engine.score(PROMPT, turn.token_ids, Sampling(**asked), top=3)
        assert turn.behaviour_logprobs == pytest.approx(scores.logprobs, abs=5e-4)
        np.testing.assert_allclose(np.exp(turn.top.logprobs), np.exp(scores.top.logprobs[:6]), atol=5e-4)


async def test_whole_earlier_turns_are_verified_and_continued(engine):
    reuse = PrefixReuse(engine, ReuseConfig(mode=ReuseMode.EXACT, top_k=8), vocabulary=engine.vocabulary, seed=5)
    sampling = Sampling(max_tokens=12)
    for _ in range(4):
        await reuse.generate(PROMPT, sampling, state=state(90))
    reuse.close_step()
    turn = await reuse.generate(PROMPT, sampling, state=state(90))
    assert reuse.stats.tickets == 1
    assert reuse.stats.reused == 12, "the policy has not changed"
    assert turn.levels == "C" * 12


async def test_the_next_turn_finds_the_keys_and_values_of_the_last(engine):
    turn = await engine.generate(PROMPT, Sampling(max_tokens=10, seed=1), state=state(100))
    prompt = PROMPT + turn.token_ids + (9, 8, 7)
    following = await engine.generate(prompt, Sampling(max_tokens=4, seed=1), state=state(101))
    assert following.cached_tokens >= len(PROMPT) + len(turn.token_ids) - 1


async def test_a_turn_ends_at_its_own_stop_tokens_alone(engine):
    turns = [
        (await engine.generate(PROMPT, Sampling(max_tokens=40, seed=seed), state=state(110))) for seed in range(12)
    ]
    passed = [turn for turn in turns if END in turn.token_ids[:-1]]
    assert passed
    assert all(turn.finish_reason is FinishReason.LENGTH and len(turn.token_ids) == 40 for turn in turns)
    seed = turns.index(passed[0])
    stopped = await engine.generate(PROMPT, Sampling(max_tokens=40, seed=seed, stop_token_ids=(END,)), state=state(110))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == passed[0].token_ids[: passed[0].token_ids.index(END) + 1]


@pytest.mark.parametrize("room", [150, 6, 1])
async def test_turns_fill_the_models_context_to_its_last_place(engine, model, room):
    prompt = [1 + n % 30 for n in range(CONTEXT - room)]
    sampling = Sampling(max_tokens=2 * CONTEXT, temperature=0)
    turns = [await engine.generate(prompt, sampling, state=state(140 + room)) for _ in range(2)]
    wanted = PolicyLaw(model).greedy(prompt, room)
    assert [list(turn.token_ids) for turn in turns] == [wanted] * 2
    assert {turn.finish_reason for turn in turns} == {FinishReason.LENGTH}
    assert turns[1].draft.accepted > 0 or room == 1
    with pytest.raises(ValueError, match=f"max_context is {CONTEXT}: no room"):
        await engine.generate([1] * CONTEXT, sampling)


def test_more_context_than_the_model_has_is_refused_before_sglang_starts(model):
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    config = SglangEngineConfig(max_context=CONTEXT + 1, engine_args={"device": "cpu"})
    with pytest.raises(ValueError, match=f"max_context is {CONTEXT + 1}, and the model .* has a context of {CONTEXT}"):
        SglangEngine(model, config=config)


async def test_a_caller_that_gives_up_frees_the_engine(engine):
    waiting = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=190), state=state(120)))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.to_thread(engine.reset_prefix_cache)


async def test_all_turns_can_be_aborted_in_their_middle(engine):
    many = [engine.generate(PROMPT, Sampling(max_tokens=190), state=state(130)) for _ in range(20)]
    gathered = asyncio.gather(*many)
    await asyncio.sleep(0.15)
    assert engine.abort_all() == 20
    turns = await gathered
    assert all(turn.finish_reason is FinishReason.ABORT for turn in turns)
    assert len(turns[0].token_ids) == len(turns[0].logprobs) < 190


async def test_penalties_are_refused_where_trees_are_verified(engine):
    with pytest.raises(UnsupportedSampling, match="draft_tokens=0"):
        await engine.generate(PROMPT, Sampling(frequency_penalty=0.5))


def test_new_weights_say_what_they_say_elsewhere_and_leave_the_store_alone(engine, tmp_path):
    from safetensors.torch import load_file

    held = engine.figures()["forest_tokens"]
    assert held > 0
    folder = save_tiny_llama(tmp_path, seed=1)
    engine.update_weights(load_file(folder / "model.safetensors").items())
    assert engine.version == 1
    assert engine.figures()["forest_tokens"] >= held
    turn = asyncio.run(engine.generate(PROMPT, Sampling(max_tokens=20, seed=4), state=state(0)))
    assert list(turn.token_ids) == PolicyLaw(folder).seeded(PROMPT, 20, 4, law_of({}))
    assert turn.cached_tokens == 0
    assert turn.weights_version == 1
