"""Run-ahead tests that every external engine must pass; an engine's test file subclasses them.

The test file provides the fixtures ``engine``, which schedules by priority, and ``policy``, a ``PolicyLaw``.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from engine_checks import ATTEMPTS, CONTEXT, PROMPT, new_weights, state
from machine_speed import patience, soon
from policy_law import PolicyLaw
from run_ahead_turns import RunAheadTurns

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.turn_drafts.idle_slots import IdleSlots

SEEDS = range(700, 706)
LENGTH = 40
LONG = CONTEXT - len(PROMPT)


def asked(seed: int, length: int = LENGTH, *, step: int = 0, name: str = "ahead") -> TurnRequest:
    return TurnRequest(PROMPT, Sampling(max_tokens=length, seed=seed), state=state(name), precomputed_for=step)


def running_ahead(engine: Any, *, batch: int = 8, slots: int = 4) -> RunAheadTurns:
    return RunAheadTurns(engine, slots=IdleSlots(engine, batch=batch, slots=slots))


def begin(run_ahead: RunAheadTurns, seeds: Sequence[int], length: int = LENGTH) -> list[asyncio.Task[Completion]]:
    return [asyncio.create_task(run_ahead.precompute(asked(seed, length, step=2))) for seed in seeds]


async def all_of(turns: Sequence[asyncio.Task[Completion]]) -> list[Completion]:
    return await asyncio.wait_for(asyncio.gather(*turns), patience(120))


class RunAheadChecks:
    async def test_a_promoted_turn_is_the_one_that_its_seed_samples(self, engine: Any, policy: PolicyLaw) -> None:
        run_ahead = running_ahead(engine)
        made = await all_of(begin(run_ahead, SEEDS))
        await run_ahead.begin_step(2)
        turns = [await run_ahead.generate(asked(seed)) for seed in SEEDS]
        wanted = [policy.seeded(PROMPT, LENGTH, seed) for seed in SEEDS]
        assert [list(turn.token_ids) for turn in turns] == [list(turn.token_ids) for turn in made] == wanted
        for turn in turns:
            assert turn.logprobs == pytest.approx(policy.logprobs(PROMPT, turn.token_ids), abs=5e-4)
            assert turn.draft.verify_steps == 1
            assert set(turn.levels) == {"B"}
        assert run_ahead.stats.promoted == run_ahead.stats.offered == LENGTH * len(SEEDS)

    async def test_under_new_weights_a_promoted_turn_is_theirs(self, engine: Any, policy: PolicyLaw) -> None:
        import torch

        noise = torch.Generator().manual_seed(0)
        new = {name: w + 0.003 * torch.randn(w.shape, generator=noise) for name, w in policy.weights().items()}
        run_ahead = running_ahead(engine)
        made = await all_of(begin(run_ahead, SEEDS))
        await run_ahead.pause()
        with new_weights(engine, policy, new) as changed:
            run_ahead.close_step(1)
            run_ahead.resume()
            await run_ahead.begin_step(2)
            turns = [await run_ahead.generate(asked(seed)) for seed in SEEDS]
            wanted = [changed.seeded(PROMPT, LENGTH, seed) for seed in SEEDS]
        assert [list(turn.token_ids) for turn in turns] == wanted
        assert [list(turn.token_ids) for turn in made] != wanted, "control: what was precomputed, taken as it is"
        assert 0 < run_ahead.stats.promoted < run_ahead.stats.offered

    async def test_a_turn_that_is_ended_at_any_moment_goes_on_from_its_tokens(self, engine: Any, policy: Any) -> None:
        run_ahead = running_ahead(engine)
        tasks = begin(run_ahead, SEEDS, LONG)
        for wait in (0.0, 0.002, 0.01, 0.05, 0.0, 0.03):
            await asyncio.sleep(wait)
            await run_ahead.abort()
        turns = await all_of(tasks)
        assert [list(turn.token_ids) for turn in turns] == [policy.seeded(PROMPT, LONG, seed) for seed in SEEDS]
        assert not engine.live

    @pytest.mark.parametrize("clears", [True, False])
    async def test_a_precomputed_turn_gives_its_slot_to_a_requested_one(self, engine, policy, monkeypatch, clears):
        """Control: without aborting precomputed turns, more turns run at once than there are slots."""
        if not clears:
            monkeypatch.setattr(IdleSlots, "_free_slots", lambda self: asyncio.sleep(0))
        for _ in range(ATTEMPTS):
            run_ahead = running_ahead(engine, batch=2, slots=2)
            tasks = begin(run_ahead, SEEDS[:3], LONG)
            await soon(lambda: engine.live == 2, 120)
            wanted = [asyncio.create_task(run_ahead.generate(asked(seed, 30))) for seed in (1, 2)]
            turns = await all_of(wanted)
            early = any(task.done() for task in tasks)
            assert [list(turn.token_ids) for turn in turns] == [policy.seeded(PROMPT, 30, seed) for seed in (1, 2)]
            late = await all_of(tasks)
            assert [list(t.token_ids) for t in late] == [policy.seeded(PROMPT, LONG, seed) for seed in SEEDS[:3]]
            if not early:
                break
        assert not early
        assert (run_ahead.stats.preempted > 0) is clears

    @pytest.mark.parametrize("by_priority", [True, False])
    async def test_requests_of_precomputed_turns_come_after_all_others(self, engine, policy, monkeypatch, by_priority):
        """Control: without the priority, the engine keeps the order of arrival."""
        if not by_priority:
            monkeypatch.setattr(type(engine._dialect), "precomputed", 0)
        batch = engine.config.max_batch
        ahead = [asyncio.create_task(engine.generate(asked(n % 6, 16, step=2, name="many"))) for n in range(3 * batch)]
        await soon(lambda: engine.live == 3 * batch or any(task.done() for task in ahead), 120)
        turn = await engine.generate(asked(9, 4))
        before = sum(task.done() for task in ahead)
        assert list(turn.token_ids) == policy.seeded(PROMPT, 4, 9)
        wanted = [policy.seeded(PROMPT, 16, seed) for seed in range(6)]
        assert [list(turn.token_ids) for turn in await all_of(ahead)] == [wanted[n % 6] for n in range(3 * batch)]
        assert (before < 2 * batch) is by_priority
