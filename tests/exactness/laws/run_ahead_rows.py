from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from laws.claims import Row
from laws.engine_rows import HOW, MODELS, SIZE, policy, sample
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.protocol import Completion, TurnRequest
from turntree.agents.turn_drafts.config import RunAheadConfig
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns, RunAheadStats
from turntree.spec_tree import SpecForest

MOVED = 0.001  #: how far the update moves each weight
TURNS = 12  #: per model, more than the engine has slots
_RUNNING = 10_000  #: first seed of the running step; the next step's seeds start at 0


async def two_steps(seed: int, prompts: list[list[int]]) -> tuple[list[Completion], RunAheadStats]:
    """Precompute the next step's turns beside the running step's, which take their slots, then verify them."""
    config = LocalEngineConfig(max_batch=9, precomputed_slots=9, max_context=64, prefill_chunk=10)
    with LocalEngine(policy(seed), config=config, forest=SpecForest()) as engine:
        ahead = PrecomputedTurns(engine, RunAheadConfig(enabled=True))
        turns = DraftedTurns(engine, [ahead])
        asked = list(enumerate(map(tuple, prompts)))
        making = [
            asyncio.create_task(ahead.precompute(TurnRequest(p, replace(HOW, seed=i), precomputed_for=2)))
            for i, p in asked
        ]
        await asyncio.sleep(0.02)
        await asyncio.gather(*(turns.generate(TurnRequest(p, replace(HOW, seed=_RUNNING + i))) for i, p in asked))
        await asyncio.gather(*making)
        await ahead.pause()
        engine.update_weights(policy(seed, moved=MOVED).model.state_dict().items())
        turns.close_step(1)
        ahead.resume()
        await ahead.begin_step(2)
        promoted = await asyncio.gather(*(turns.generate(TurnRequest(p, replace(HOW, seed=i))) for i, p in asked))
        return promoted, ahead.stats


def differing(seed: int) -> tuple[int, int, RunAheadStats]:
    """Return how many promoted turns, and how many unverified ones, differ from plain decoding after the update."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, SIZE, size=int(rng.integers(2, 20))).tolist() for _ in range(TURNS)]
    alone = LocalEngineConfig(max_batch=1, max_context=64, speculation=None)
    before, plain = (
        [turn.token_ids for turn in sample(EngineCore(policy(seed, moved=moved), alone, None), prompts, HOW)]
        for moved in (0.0, MOVED)
    )
    turns, stats = asyncio.run(two_steps(seed, prompts))
    assert {letter for turn in turns for letter in turn.levels} == {"B"}
    wrong = sum(turn.token_ids != tokens for turn, tokens in zip(turns, plain, strict=True))
    return wrong, sum(a != b for a, b in zip(before, plain, strict=True)), stats


def rows() -> Iterator[Row]:
    found = [differing(seed) for seed in range(MODELS)]
    wrong, unverified = sum(f[0] for f in found), sum(f[1] for f in found)
    stats = [counts for _, _, counts in found]
    promoted = sum(s.promoted for s in stats) / sum(s.offered for s in stats)
    yield Row(
        rule="local engine, float64: turns made ahead of an update, given up and taken up again, then promoted",
        level="B",
        statistic="differing",
        value=wrong,
        control="what was made ahead, as it is",
        control_value=unverified,
        holds=wrong == 0 and unverified > 0,
        note=f"of {MODELS * TURNS} turns; {promoted:.0%} of the tokens promoted; "
        f"{sum(s.preempted for s in stats)} times given up",
    )
