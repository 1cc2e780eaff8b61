"""A policy whose earlier turns are used again, over an engine that knows every law."""

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
    """The same law after everything."""
    law = np.array(p) / np.sum(p)
    return lambda context: law


def after_prompt(policy: Law) -> Law:
    """The same turn's law after every prompt of one token: each prompt is a state of its own."""
    return lambda context: policy(context[1:])


class Reused:
    """The engine, the reuse around it, and the words to ask both."""

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
        """Turns that are asked for at once, with seeds from 10."""

        async def play() -> list[Completion]:
            how = [replace(TURN, seed=10 + number, **changes) for number in range(count)]
            return await asyncio.gather(*(self.reuse.generate(TurnRequest(prompt, sampling)) for sampling in how))

        return asyncio.run(play())

    def many(self, states: int, *, each: int = 1, max_tokens: int = 2) -> list[Completion]:
        """Turns without an end, ``each`` at each of some states, one after another."""

        async def play() -> list[Completion]:
            how = [Sampling(max_tokens=max_tokens, seed=number) for number in range(states * each)]
            return [
                await self.reuse.generate(TurnRequest((number // each,), sampling))
                for number, sampling in enumerate(how)
            ]

        return asyncio.run(play())

    def update(self, policy: Law | None = None, *, trained: bool = True) -> None:
        """Train: another policy, or the same one under a new version."""
        self.engine.policy, self.engine.version = policy or self.engine.policy, self.engine.version + 1
        self.reuse.close_step(trained=trained)
