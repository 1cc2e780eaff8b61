import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from cores import CONFIG, AdversarialForest, run_core, tiny_llama
from machine_speed import patience, soon
from tables import table

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Engine, FinishReason, Sampling, TurnRequest
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest


async def test_many_callers_get_what_each_would_get_alone(engine, prompts):
    assert isinstance(engine, Engine)
    alone = run_core(tiny_llama(), prompts, Sampling(max_tokens=10))
    turns = await asyncio.gather(
        *(engine.generate(TurnRequest(p, Sampling(max_tokens=10, seed=i))) for i, p in enumerate(prompts))
    )
    assert [t.token_ids for t in turns] == [t.token_ids for t in alone]
    stats = engine.stats()
    assert (stats.tokens, stats.requests) == (100, len(prompts))
    assert stats.verify_steps == sum(t.draft.verify_steps for t in turns)


async def test_without_a_seed_samples_differ(engine, prompts):
    turns = await asyncio.gather(*(engine.generate(TurnRequest(prompts[0], Sampling(max_tokens=12))) for _ in range(6)))
    assert len({t.token_ids for t in turns}) > 3


async def test_weights_arrive_while_turns_are_running(engine, prompts):
    new = tiny_llama(seed=1)
    running = [asyncio.create_task(engine.generate(TurnRequest(p, Sampling(max_tokens=60)))) for p in prompts]
    await soon(lambda: engine.live, 120)
    await asyncio.to_thread(engine.update_weights, new.state_dict().items(), version=7)
    assert all(len(t.token_ids) == 60 for t in await asyncio.gather(*running))
    turn = await engine.generate(TurnRequest(prompts[0], Sampling(temperature=0, max_tokens=8)))
    own = run_core(new, prompts[:1], Sampling(temperature=0, max_tokens=8))[0]
    assert (turn.token_ids, turn.weights_version) == (own.token_ids, 7)


class Held(Policy):
    """A policy that computes ``left`` steps, then waits for ``free``."""

    left = 1 << 30

    def __init__(self, model):
        super().__init__(model)
        self.free = Event()

    def logits(self, *given):
        self.left -= 1
        assert self.left >= 0 or self.free.wait(patience(120))
        return super().logits(*given)


@pytest.mark.parametrize("turn_drafted", [False, True])
async def test_a_turn_that_is_cancelled_also_in_the_middle_of_its_draft_leaves_the_engine(prompts, turn_drafted):
    forest, how = AdversarialForest(32), Sampling(max_tokens=110, seed=1)
    policy = Held(tiny_llama())
    with LocalEngine(policy, config=replace(CONFIG, prefill_chunk=2), forest=forest) as engine:
        turn = await engine.generate(TurnRequest(prompts[0], how))
        policy.left = 6
        task = asyncio.create_task(
            engine.generate(TurnRequest(prompts[0], how, draft=turn.token_ids if turn_drafted else ()))
        )
        await soon(lambda: policy.left < 0, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        policy.free.set()
        assert (await engine.generate(TurnRequest(prompts[0], how))).token_ids == turn.token_ids
        assert not engine.live
        assert not forest.live
        assert forest.withdrawn == 1


class Breaking(Policy):
    breaks = True

    def logits(self, *given):
        if self.breaks:
            raise MemoryError("no memory")
        return super().logits(*given)


async def test_a_step_that_breaks_fails_its_callers_and_not_the_engine(model, prompts):
    with LocalEngine(policy := Breaking(model), config=CONFIG) as engine:
        with pytest.raises(RuntimeError, match="no memory"):
            await engine.generate(TurnRequest(prompts[0], Sampling(max_tokens=3)))
        policy.breaks = False
        assert len((await engine.generate(TurnRequest(prompts[0], Sampling(max_tokens=3)))).token_ids) == 3


def unholdable(**fields):
    """Return a sampling that passes the checks, but that torch cannot hold."""
    sampling = Sampling(**fields)
    object.__setattr__(sampling, "top_k", 1 << 63)
    return sampling


async def beside_one_that_fails(engine, prompts, sampling):
    odd = asyncio.create_task(engine.generate(TurnRequest(prompts[0], sampling)))
    turns = [engine.generate(TurnRequest(prompts[n % 2], Sampling(max_tokens=6, seed=n))) for n in range(6)]
    *turns, scores = await asyncio.gather(
        *turns, engine.score(prompts[1], [5, 6, 7], Sampling()), return_exceptions=True
    )
    (failed,) = await asyncio.gather(odd, return_exceptions=True)
    return [getattr(turn, "token_ids", turn) for turn in turns], getattr(scores, "logprobs", scores), failed


@pytest.mark.parametrize("forest", [None, AdversarialForest(32)])
async def test_a_request_that_fails_in_a_pass_fails_alone(prompts, forest):
    with LocalEngine(tiny_llama(), config=CONFIG, forest=forest) as engine:
        turns, scores, well = await beside_one_that_fails(engine, prompts, Sampling(max_tokens=3, seed=9))
        again, same, failed = await beside_one_that_fails(engine, prompts, unholdable(max_tokens=3, seed=9))
        assert (again, same) == (turns, pytest.approx(scores))
        assert isinstance(failed, RuntimeError)
        assert len(well.token_ids) == 3
        assert engine.live == 0


async def test_a_pass_that_is_not_gone_through_again_fails_them_all(prompts, monkeypatch):
    monkeypatch.setattr(EngineCore, "_run", lambda core, rows: core._settle(rows, core._draw(rows)))
    with LocalEngine(tiny_llama(), config=CONFIG) as engine:
        turns, _, failed = await beside_one_that_fails(engine, prompts, unholdable(max_tokens=3, seed=9))
        assert all(isinstance(one, RuntimeError) for one in (*turns, failed))


@pytest.mark.parametrize(
    ("prompt", "message"), [*table(__file__, "bad_prompts"), ([1] * 128, "max_context is 128: no token")]
)
async def test_a_bad_prompt_is_refused_with_the_reason(engine, prompt, message):
    with pytest.raises(ValueError, match=message):
        await engine.generate(TurnRequest(prompt, Sampling()))


async def test_a_closed_engine_says_so(prompts):
    forest = AdversarialForest(32)
    engine = LocalEngine(tiny_llama(), config=CONFIG, forest=forest)
    pending = asyncio.create_task(engine.generate(TurnRequest(prompts[0], Sampling(max_tokens=100))))
    await soon(lambda: engine.live, 120)
    await asyncio.to_thread(engine.close)
    engine.close()
    assert (await pending).finish_reason is FinishReason.ABORT
    with pytest.raises(RuntimeError, match="closed"):
        await engine.generate(TurnRequest(prompts[0], Sampling()))


def test_a_context_beyond_the_models_positions_and_a_missing_directory_are_refused():
    with pytest.raises(ValueError, match="the model has 256 positions"):
        LocalEngine(tiny_llama(), config=LocalEngineConfig(max_context=512))
    with pytest.raises(FileNotFoundError, match=r"no model directory at \./nowhere"):
        LocalEngine.from_pretrained("./nowhere")


@pytest.mark.parametrize(("kind", "settings"), table(__file__, "bad_settings"))
def test_bad_settings_are_refused_by_name(kind, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        {"engine": LocalEngineConfig, "speculation": Speculation}[kind](**settings)


async def test_a_store_that_the_engine_makes_knows_the_models_end_tokens():
    model = tiny_llama()
    model.generation_config.eos_token_id = [5, 9]
    with LocalEngine(model, config=CONFIG, forest=ForestConfig(end_tokens=frozenset({3}))) as engine:
        assert engine.forest.config.end_tokens == {3, 5, 9}
    with LocalEngine(tiny_llama(), config=replace(CONFIG, speculation=None), forest=ForestConfig()) as engine:
        assert engine.forest is None


async def test_a_store_given_to_an_engine_is_of_its_tokenizer_and_drafts_no_token_beyond_its_vocabulary(
    tiny_model: Path, prompts: list[list[int]]
) -> None:
    state, how = DialogueState.from_tokens(prompts[0]), Sampling(temperature=0, max_tokens=12)
    forest = SpecForest()
    with LocalEngine.from_pretrained(tiny_model, config=CONFIG, forest=forest) as engine:
        assert forest.config.tokenizer == tokenizer_hash(str(tiny_model)) != ""
        turn = await engine.generate(TurnRequest(prompts[0], how, state=state))
        with pytest.raises(ValueError, match=f"from 0 to {engine.vocabulary - 1}, got 2147483647"):
            forest.insert(state, [2**31 - 1])
    poisoned = SpecForest()
    for position in range(12):
        poisoned.insert(state, [*turn.token_ids[:position], 2**31 - 1, 5])
    with LocalEngine.from_pretrained(tiny_model, config=CONFIG, forest=poisoned) as engine:
        again = await engine.generate(TurnRequest(prompts[0], how, state=state))
    assert again.token_ids == turn.token_ids
    with pytest.raises(ValueError, match=f"expected turns of the tokenizer {forest.config.tokenizer}, got turns of x;"):
        LocalEngine.from_pretrained(tiny_model, config=CONFIG, forest=SpecForest(ForestConfig(tokenizer="x")))


PROMPT = (3, 1, 4, 1, 5)
SAMPLING = Sampling(max_tokens=24, seed=7)


def sampled(engine: LocalEngine, request: TurnRequest):
    return asyncio.run(engine.generate(request))


@pytest.mark.parametrize("drafted", [True, False])
def test_the_tokens_shown_are_those_of_the_turn(model, drafted):
    speculation = Speculation(adaptive=False, min_probability=0.0) if drafted else None
    with LocalEngine(model, config=replace(CONFIG, speculation=speculation)) as engine:
        plain = sampled(engine, TurnRequest(PROMPT, SAMPLING))
        shown: list[Sequence[int]] = []
        request = TurnRequest(PROMPT, SAMPLING, watch=lambda tokens: shown.append(tokens) or False)
        watched = sampled(engine, replace(request, draft=plain.token_ids if drafted else ()))
    assert watched.token_ids == plain.token_ids
    assert [token for tokens in shown for token in tokens] == list(plain.token_ids)
    assert len(shown) == watched.draft.verify_steps
    assert (max(map(len, shown)) > 1) == drafted


def test_a_watcher_ends_the_turn_after_the_tokens_that_it_has_seen(engine):
    plain = sampled(engine, TurnRequest(PROMPT, SAMPLING))
    seen: list[int] = []

    def watch(tokens: Sequence[int]) -> bool:
        seen.extend(tokens)
        return len(seen) >= 5

    done = sampled(engine, TurnRequest(PROMPT, SAMPLING, watch=watch))
    assert done.finish_reason is FinishReason.STOP
    assert list(done.token_ids) == seen
    assert done.token_ids == plain.token_ids[: len(seen)]
    assert len(seen) < len(plain.token_ids)
    assert sampled(engine, TurnRequest(PROMPT, SAMPLING)).token_ids == plain.token_ids


async def test_a_watcher_that_raises_loses_its_own_turn_alone(engine):
    def watch(tokens: Sequence[int]) -> bool:
        raise OSError("nobody looks any more")

    broken, whole = await asyncio.gather(
        engine.generate(TurnRequest(PROMPT, SAMPLING, watch=watch)),
        engine.generate(TurnRequest(PROMPT, SAMPLING)),
        return_exceptions=True,
    )
    assert "nobody looks" in str(broken)
    assert len(whole.token_ids) == SAMPLING.max_tokens
