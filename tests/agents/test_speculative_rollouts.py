"""Whole multi-turn dialogues over the local engine, with speculation and without, in float32."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episode import Episode
from turntree.agents.renderer import Renderer
from turntree.agents.rollout import rollout
from turntree.envs import Env, Limits, Message, Reply, Role, Task


class Echo(Env):
    """Answers three turns with what was said, then ends."""

    def task(self, index: int) -> Task:
        return Task(id=f"echo/{index}", prompt=f"say {index}")

    def reply(self, message: Message) -> Reply:
        heard = Message(role=Role.USER, content=f"you said {len(message.content)} characters")
        return Reply(messages=(heard,))


def play(model: Path, renderer: Renderer, sampling: Sampling, speculation: Speculation | None, rounds: int) -> Any:
    limits = Limits(max_turns=3, max_turn_tokens=12)
    config = LocalEngineConfig(max_batch=8, max_context=256, speculation=speculation, threads=1)

    async def round_(engine: LocalEngine) -> list[Episode]:
        jobs = (
            rollout(Echo(limits=limits), engine, renderer, index=i % 3, seed=i, sampling=sampling) for i in range(9)
        )
        return await asyncio.gather(*jobs)

    with LocalEngine.from_pretrained(model, config=config) as engine:
        played = [asyncio.run(round_(engine)) for _ in range(rounds)]
        return played, engine.stats()


def tokens(episodes: list[Episode]) -> list[list[tuple[int, ...]]]:
    return [[turn.completion.token_ids for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=1)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "tree"])
def test_dialogues_are_equal_token_for_token_with_and_without_speculation(tiny_model, chatml, sampling, chain):
    renderer = Renderer(chatml)
    drafts = Speculation(min_probability=0.05, chain=chain, adaptive=False)
    drafted, stats = play(tiny_model, renderer, sampling, drafts, rounds=2)
    plain, _ = play(tiny_model, renderer, sampling, None, rounds=1)
    assert {len(episode.turns) for episode in plain[0]} == {3}, "the dialogues must have several turns"
    assert tokens(drafted[0]) == tokens(plain[0])
    assert tokens(drafted[1]) == tokens(plain[0])
    assert stats.accepted > 0.2 * stats.tokens, "drafts must have been accepted, or nothing was shown"
    assert stats.cached_tokens > 0, "the turns of a dialogue must share keys and values"
