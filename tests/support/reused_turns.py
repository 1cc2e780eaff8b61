"""A policy whose earlier turns are reused, over an engine that knows every distribution."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
from tabled_engine import Law, TabledEngine

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.agents.turn_drafts.stored import ReuseStats
from turntree.spec_tree.rules.ledger import LedgerStats

EXACT = ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING)
LENIENT = ReuseConfig(mode=ReuseMode.SPEC_RL, preset="grpo")
REPLAY = ReuseConfig(mode=ReuseMode.SAME_SEED)
STOP = 0
TURN = Sampling(max_tokens=6, stop_token_ids=(STOP,), seed=5)


def fixed(*p: float) -> Law:
    law = np.array(p) / np.sum(p)
    return lambda context: law


def after_prompt(policy: Law) -> Law:
    """Make every one-token prompt a state of its own with the same distribution of turns."""
    return lambda context: policy(context[1:])


class Reused:
    def __init__(self, policy: Law, config: ReuseConfig = EXACT, vocabulary: int = 4, **options: Any) -> None:
        self.engine = TabledEngine(policy)
        self.reuse = PrefixReuse(self.engine, config, vocabulary=vocabulary, **{"seed": 0, **options})

    @property
    def stats(self) -> ReuseStats:
        return self.reuse.stats

    @property
    def held(self) -> LedgerStats:
        return self.reuse.ledger.stats()

    def ask(self, prompt: tuple[int, ...] = (9,), *, state: Any = None, **changes: Any) -> Completion:
        return asyncio.run(self.reuse.generate(TurnRequest(prompt, replace(TURN, **changes), state=state)))

    def siblings(self, count: int, *, prompt: tuple[int, ...] = (9,), **changes: Any) -> list[Completion]:
        async def play() -> list[Completion]:
            how = [replace(TURN, seed=10 + number, **changes) for number in range(count)]
            return await asyncio.gather(*(self.reuse.generate(TurnRequest(prompt, sampling)) for sampling in how))

        return asyncio.run(play())

    def many(self, states: int, *, each: int = 1, max_tokens: int = 2) -> list[Completion]:
        async def play() -> list[Completion]:
            how = [Sampling(max_tokens=max_tokens, seed=number) for number in range(states * each)]
            return [
                await self.reuse.generate(TurnRequest((number // each,), sampling))
                for number, sampling in enumerate(how)
            ]

        return asyncio.run(play())

    def update(self, policy: Law | None = None, *, trained: bool = True) -> None:
        self.engine.policy, self.engine.version = policy or self.engine.policy, self.engine.version + 1
        self.reuse.close_step(trained=trained)
