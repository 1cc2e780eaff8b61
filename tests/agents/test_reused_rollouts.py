"""Earlier trajectories used again under the one loop, over the local engine, in float64."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episode import Episode
from turntree.agents.evaluate import evaluate
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.renderer import Renderer
from turntree.agents.reuse_config import ReuseConfig, ReuseMode
from turntree.agents.token_view import TokenView
from turntree.envs import Env, Limits, Message, Reply, Role, Task

LIMITS = Limits(max_turns=3, max_turn_tokens=12)
TASKS = range(4)


class Hints(Env):
    """Gives a hint after every turn; what it says of a task can be changed."""

    changed_from_turn = 99
    turn = 0

    def task(self, index: int) -> Task:
        return Task(id=f"hints/{index}", prompt=f"guess {index}")

    def start(self, task: Task) -> list[Message]:
        self.turn = 0
        return list(super().start(task))

    def reply(self, message: Message) -> Reply:
        self.turn += 1
        hint = "warm" if self.turn < self.changed_from_turn else "cold"
        return Reply(messages=(Message(role=Role.USER, content=hint),))


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    config = LocalEngineConfig(max_batch=8, max_context=256, dtype="float64", speculation=None, threads=1)
    with LocalEngine.from_pretrained(tiny_model, config=config) as engine:
        yield engine


def reusing(engine: LocalEngine, mode: str, **fields: Any) -> PrefixReuse:
    # An untrained policy is nearly uniform: all its tokens are needed to know the law.
    config = ReuseConfig(mode=ReuseMode(mode), **{"top_k": 1000, **fields})
    return PrefixReuse(engine, config, vocabulary=engine.vocabulary, max_context=engine.config.max_context, seed=1)


def play(engine: Any, tokenizer: Any, seed: int, changed_from_turn: int = 99) -> list[Episode]:
    def make() -> Hints:
        env = Hints(limits=LIMITS)
        env.changed_from_turn = changed_from_turn
        return env

    return asyncio.run(
        evaluate(make, engine, Renderer(tokenizer), TASKS, sampling=Sampling(temperature=0.7), seed=seed, concurrency=4)
    )


def said(episodes: list[Episode]) -> list[list[tuple[int, ...]]]:
    return [[turn.completion.token_ids for turn in episode.turns] for episode in episodes]


def shake(engine: LocalEngine, model: Path, by: float) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    named = AutoModelForCausalLM.from_pretrained(model).state_dict()
    engine.update_weights([(name, value + by * torch.randn_like(value)) for name, value in named.items()])


@pytest.mark.parametrize("mode", ["exact", "replay"])
def test_an_unchanged_policy_says_whole_dialogues_again_in_one_pass_a_turn(
    engine: LocalEngine, chatml: Any, mode: str
) -> None:
    reuse = reusing(engine, mode)
    first = play(reuse, chatml, seed=1)
    passes = engine.stats().forward_passes
    assert {len(episode.turns) for episode in first} == {3}
    reuse.close_step(trained=False)
    again = play(reuse, chatml, seed=2)
    assert said(again) == said(first)
    assert reuse.stats.tickets == reuse.stats.whole == 3 * len(first)
    assert engine.stats().forward_passes - passes < passes
    levels = {level for episode in again for turn in episode.turns for level in turn.completion.levels}
    assert {letter for level in levels for letter in level} == {"B"}


def test_reuse_goes_on_as_long_as_the_observation_is_reproduced(engine: LocalEngine, chatml: Any) -> None:
    reuse = reusing(engine, "replay")
    first = play(reuse, chatml, seed=1)
    reuse.close_step()
    changed = play(reuse, chatml, seed=2, changed_from_turn=2)
    for before, after in zip(first, changed, strict=True):
        assert said([after])[0][:2] == said([before])[0][:2], "the first hint is the same: two turns replay"
        assert after.turns[1].completion.levels[0] == "C"
        assert set(after.turns[2].completion.levels) <= {"A"}, "after another hint nothing is known"
    assert reuse.stats.tickets == 2 * len(first)


@pytest.mark.parametrize("mode", ["exact", "lenient", "replay"])
def test_a_moved_policy_gives_sound_episodes(engine: LocalEngine, chatml: Any, tiny_model: Path, mode: str) -> None:
    reuse = reusing(engine, mode, top_k=300, **({"bias": 0.5} if mode == "lenient" else {}))
    for epoch in range(3):
        for episode in play(reuse, chatml, seed=epoch):
            view = TokenView.of(episode)
            assert len(view.levels) == len(view.behaviour_logprobs) == len(view.mask)
            assert all((level > 0) == (own == 1) for level, own in zip(view.levels, view.mask, strict=True))
            for turn in episode.turns:
                done = turn.completion
                assert len(done.logprobs) == len(done.behaviour_logprobs) == len(done.token_ids)
                assert done.top is None
        shake(engine, tiny_model, by=0.002 * (epoch + 1))
        reuse.close_step()
    assert reuse.stats.reused > 0


def test_reused_tokens_have_the_log_probabilities_of_the_policy_of_now(
    engine: LocalEngine, chatml: Any, tiny_model: Path
) -> None:
    reuse = reusing(engine, "exact")
    play(reuse, chatml, seed=1)
    shake(engine, tiny_model, by=0.01)
    reuse.close_step()
    episode = play(reuse, chatml, seed=2)[0]
    for turn in episode.turns:
        done = turn.completion
        scores = asyncio.run(engine.score(turn.prompt_ids, done.token_ids, Sampling(temperature=0.7)))
        assert done.behaviour_logprobs == pytest.approx(scores.logprobs, abs=1e-5)
        assert done.logprobs == pytest.approx(scores.logprobs, abs=1e-5)
