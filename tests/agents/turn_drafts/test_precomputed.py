import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from machine_speed import patience
from run_ahead_turns import RunAheadTurns
from tabled_engine import TabledEngine, random_policy

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig, RunAheadConfig
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.turn_drafts.stored import StoredTurns

PROMPT = (1, 2)


@dataclass
class SlowEngine(TabledEngine):
    cut: int = 2
    held: list[asyncio.Future[bool]] = field(default_factory=list)  #: whether precomputed turns may finish
    drafts: list[tuple[int, ...]] = field(default_factory=list)

    async def generate(self, request: TurnRequest) -> Completion:
        draft, ahead = tuple(request.draft), request.precomputed_for > 0
        whole = await super().generate(request)
        self.drafts.append(draft)
        if ahead:
            self.held.append(asyncio.get_running_loop().create_future())
        if not ahead or await self.held[-1]:
            return whole
        had = max(self.cut, len(draft))
        return replace(
            whole, token_ids=whole.token_ids[:had], logprobs=whole.logprobs[:had], finish_reason=FinishReason.ABORT
        )

    def answer(self, whole: bool) -> int:
        held, self.held = self.held, []
        for future in held:
            future.get_loop().call_soon_threadsafe(future.set_result, whole)
        return len(held)

    async def abort_precomputed(self) -> int:
        return self.answer(False)

    def let_finish(self) -> None:
        self.answer(True)


def make(**settings: Any) -> tuple[RunAheadTurns, SlowEngine]:
    engine = SlowEngine(random_policy(3, 5))
    return RunAheadTurns(engine, **settings), engine


def sampling(seed: int | None) -> Sampling:
    return Sampling(max_tokens=6, seed=seed)


async def plain(policy: int) -> tuple[int, ...]:
    return (await TabledEngine(random_policy(policy, 5)).generate(TurnRequest(PROMPT, sampling(7)))).token_ids


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def begun(run_ahead: RunAheadTurns, *seeds: int, step: int = 2) -> list[asyncio.Task[Completion]]:
    tasks = [
        asyncio.create_task(run_ahead.precompute(TurnRequest(PROMPT, sampling(seed), precomputed_for=step)))
        for seed in seeds
    ]
    await settled()
    return tasks


async def precompute_turns(run_ahead: RunAheadTurns, engine: SlowEngine, seed: int, *, step: int = 2) -> Completion:
    (task,) = await begun(run_ahead, seed, step=step)
    engine.let_finish()
    return await task


async def test_what_was_made_ahead_is_the_draft_of_the_turn_that_its_step_asks_for() -> None:
    run_ahead, engine = make()
    made = await precompute_turns(run_ahead, engine, 7)
    await run_ahead.begin_step(2)
    turn = await run_ahead.generate(TurnRequest(PROMPT, sampling(7)))
    assert engine.drafts[-1] == made.token_ids == turn.token_ids
    assert (turn.levels, turn.draft.verify_steps) == ("B" * 6, 1)
    stats = run_ahead.stats
    assert (stats.turns, stats.tokens, stats.offered, stats.promoted, stats.wasted) == (1, 6, 6, 6, 0)


async def test_the_new_policy_has_the_last_word() -> None:
    run_ahead, engine = make()
    made = await precompute_turns(run_ahead, engine, 7)
    engine.policy = random_policy(4, 5)
    run_ahead.close_step(1)
    assert (await run_ahead.generate(TurnRequest(PROMPT, sampling(7)))).token_ids == await plain(4) != made.token_ids
    assert run_ahead.stats.wasted == 6 - run_ahead.stats.promoted > 0


async def test_a_turn_of_used_noise_is_level_b_at_another_prompt_too_and_says_nothing_of_acceptance() -> None:
    run_ahead, engine = make()
    await precompute_turns(run_ahead, engine, 7)
    for seed in (8, None):
        turn = await run_ahead.generate(TurnRequest(PROMPT, sampling(seed)))
        assert (turn.levels, engine.drafts[-1]) == ("", ())
    turn = await run_ahead.generate(TurnRequest((9,), sampling(7)))
    assert (turn.levels, engine.drafts[-1]) == ("B" * 6, ())
    assert (turn.draft.tested, turn.draft.expected) == (0, 0.0)


async def test_a_preempted_turn_goes_on_from_what_it_had() -> None:
    run_ahead, engine = make()
    (task,) = await begun(run_ahead, 7)
    await engine.abort_precomputed()
    await settled()
    assert len(engine.drafts[-1]) == engine.cut
    engine.let_finish()
    turn = await task
    assert turn.finish_reason is FinishReason.LENGTH
    assert turn.token_ids == await plain(3)
    assert (run_ahead.stats.preempted, run_ahead.stats.turns, run_ahead.stats.tokens) == (1, 1, 6)


async def test_when_a_step_begins_what_was_being_made_for_it_is_a_draft_at_once() -> None:
    run_ahead, engine = make()
    (task,), (later,) = await begun(run_ahead, 7), await begun(run_ahead, 8, step=3)
    await run_ahead.begin_step(2)
    assert task.result().finish_reason is FinishReason.ABORT
    await run_ahead.generate(TurnRequest(PROMPT, sampling(7)))
    assert len(engine.drafts[-1]) == engine.cut
    assert not later.done(), "the step after goes on being made"
    engine.let_finish()
    assert (await later).finish_reason is FinishReason.LENGTH


async def test_nothing_is_made_for_a_step_that_has_begun_or_without_a_seed() -> None:
    run_ahead, engine = make()
    await run_ahead.begin_step(2)
    made = await run_ahead.precompute(TurnRequest(PROMPT, sampling(7), precomputed_for=2))
    assert (made.token_ids, made.finish_reason, engine.drafts) == ((), FinishReason.ABORT, [])
    with pytest.raises(ValueError, match=r"sampling\.seed=None"):
        await run_ahead.precompute(TurnRequest(PROMPT, sampling(None), precomputed_for=3))


async def test_a_pause_keeps_what_was_made_to_go_on_and_a_step_can_begin_in_it() -> None:
    run_ahead, engine = make()
    (task,) = await begun(run_ahead, 7)
    await run_ahead.pause()
    assert run_ahead.store.tokens == engine.cut
    run_ahead.resume()
    await settled()
    engine.let_finish()
    assert (await task).finish_reason is FinishReason.LENGTH
    assert run_ahead.stats.preempted == 0, "nobody wanted its slot"
    (task,) = await begun(run_ahead, 8)
    await run_ahead.pause()
    await settled()
    assert not engine.held
    assert not task.done()
    await asyncio.wait_for(run_ahead.begin_step(2), patience(5))
    assert task.done()


async def test_the_budget_of_a_step_ends_what_is_made_ahead_and_comes_back_with_the_next() -> None:
    run_ahead, engine = make(tokens=6)
    await precompute_turns(run_ahead, engine, 7)
    assert (await run_ahead.precompute(TurnRequest(PROMPT, sampling(8), precomputed_for=2))).token_ids == ()
    run_ahead.close_step(1)
    assert len((await precompute_turns(run_ahead, engine, 8, step=3)).token_ids) == 6


@pytest.mark.parametrize("mode", ["same_seed", "rejection_sampling"])
async def test_a_turn_made_ahead_goes_before_a_stored_one(mode: str) -> None:
    run_ahead, engine = make()
    stored = StoredTurns(ReuseConfig(mode=mode, top_k=5), vocabulary=5)  # type: ignore[arg-type]
    reuse = DraftedTurns(engine, [run_ahead.ahead, stored])
    await reuse.generate(TurnRequest(PROMPT, sampling(1)))
    reuse.close_step(1)
    made = await precompute_turns(run_ahead, engine, stored.base_seed(7), step=2)
    turn = await reuse.generate(TurnRequest(PROMPT, sampling(7)))
    assert (turn.levels, turn.token_ids) == ("B" * 6, made.token_ids)
    assert (await reuse.generate(TurnRequest(PROMPT, sampling(8)))).levels[0] == "C", "the stored turn is still there"


def test_a_share_is_at_least_one_slot() -> None:
    assert [RunAheadConfig(share=share).slots(4) for share in (0.01, 0.5, 1.0)] == [1, 2, 4]


@pytest.mark.parametrize(("name", "value"), [("share", 0.0), ("share", 1.5), ("tokens", 0), ("max_tokens", 0)])
def test_settings_that_make_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        RunAheadConfig(**{name: value})  # type: ignore[arg-type]


async def test_a_turn_that_is_asked_for_twice_is_made_once() -> None:
    run_ahead, engine = make()
    twice = await begun(run_ahead, 7, 7)
    assert len(engine.held) == 1
    engine.let_finish()
    one, other = await asyncio.gather(*twice)
    assert (one, run_ahead.stats.turns) == (other, 1)


async def test_an_engine_that_breaks_breaks_the_turn_and_nothing_else() -> None:
    run_ahead, engine = make()
    engine.policy = lambda context: 1 / 0
    with pytest.raises(ZeroDivisionError):
        await run_ahead.precompute(TurnRequest(PROMPT, sampling(7), precomputed_for=2))
    engine.policy = random_policy(3, 5)
    assert len((await precompute_turns(run_ahead, engine, 7)).token_ids) == 6


@pytest.mark.parametrize("trains", [True, False])
async def test_only_turns_that_the_policy_is_trained_on_spoil_their_noise(trains: bool) -> None:
    run_ahead, _ = make()
    await run_ahead.generate(TurnRequest(PROMPT, sampling(7), reuse=trains))
    assert run_ahead.store.shown == ({7} if trains else set())
