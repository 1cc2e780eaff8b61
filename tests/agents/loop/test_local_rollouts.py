import asyncio
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.evaluation.evaluate import evaluate
from turntree.agents.loop.renderer import Renderer
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.envs import Env, Limits, Message, Reply, Role, Task

SAMPLING = Sampling(temperature=0.7)
SIZE = {"max_batch": 8, "max_context": 256, "threads": 1}


class Hints(Env):
    # Gives a hint after every turn that repeats the turn; from turn ``at`` on it is another hint.

    def __init__(self, changed_from_turn: int = 99) -> None:
        super().__init__(limits=Limits(max_turns=3, max_turn_tokens=12))
        self.changed_from_turn = changed_from_turn

    def task(self, index: int) -> Task:
        return Task(id=f"hints/{index}", prompt=f"draft {index}")

    def reply(self, message: Message) -> Reply:
        turn = sum(said.role is Role.ASSISTANT for said in self.messages)
        hint = "warm" if turn < self.changed_from_turn else "cold"
        return Reply(messages=(Message(role=Role.USER, content=f"{hint} after {len(message.content)}"),))


def play(engine: Any, tokenizer: Any, seed: int, sampling: Sampling = SAMPLING, **changes: int) -> list[Episode]:
    how = {"samples": 2, "sampling": sampling, "seed": seed, "concurrency": 4}
    return asyncio.run(evaluate(lambda: Hints(**changes), engine, Renderer(tokenizer), range(4), **how))


def said(episodes: list[Episode]) -> list[list[tuple[int, ...]]]:
    return [[turn.completion.token_ids for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize(
    ("temperature", "chain"),
    [(0, False), (1, True), *(pytest.param(*both, marks=pytest.mark.release) for both in ((0, True), (1, False)))],
)
def test_dialogues_are_equal_token_for_token_with_and_without_speculation(tiny_model, chatml, temperature, chain):
    sampling = Sampling(temperature=temperature)
    drafts = Speculation(min_probability=0.05, chain=chain, adaptive=False)
    plain, *drafted = (LocalEngineConfig(speculation=speculation, **SIZE) for speculation in (None, drafts))
    with LocalEngine.from_pretrained(tiny_model, config=plain) as engine:
        expected = said(play(engine, chatml, 1, sampling))
    assert {len(episode) for episode in expected} == {3}, "the dialogues must have several turns"
    with LocalEngine.from_pretrained(tiny_model, config=drafted[0]) as engine:
        for _ in range(2):
            assert said(play(engine, chatml, 1, sampling)) == expected
        stats = engine.stats()
    assert stats.accepted > 0.2 * stats.tokens, "drafts must have been accepted, or nothing was shown"
    assert stats.cached_tokens > 0, "the turns of a dialogue must share keys and values"


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    config = LocalEngineConfig(dtype="float64", speculation=None, **SIZE)
    with LocalEngine.from_pretrained(tiny_model, config=config) as engine:
        yield engine


def reusing(engine: LocalEngine, mode: str, **fields: Any) -> PrefixReuse:
    # An untrained policy is nearly uniform: all its tokens are needed to know the law.
    config = ReuseConfig(mode=ReuseMode(mode), **{"top_k": 1000, **fields})
    return PrefixReuse(engine, config, vocabulary=engine.vocabulary, max_context=engine.config.max_context, seed=1)


def shake(engine: LocalEngine, model: Path, by: float) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    named = AutoModelForCausalLM.from_pretrained(model).state_dict()
    engine.update_weights([(name, value + by * torch.randn_like(value)) for name, value in named.items()])


@pytest.mark.parametrize("mode", ["rejection_sampling", "same_seed"])
def test_an_unchanged_policy_says_whole_dialogues_again_in_one_pass_a_turn(engine, chatml, mode):
    reuse = reusing(engine, mode)
    first = play(reuse, chatml, seed=1)
    passes = engine.stats().forward_passes
    assert {len(episode.turns) for episode in first} == {3}
    reuse.close_step(trained=False)
    again = play(reuse, chatml, seed=2)
    assert sorted(said(again)) == sorted(said(first)), "siblings may have each other's"
    assert reuse.stats.drafted_turns == reuse.stats.whole == 3 * len(first)
    assert engine.stats().forward_passes - passes < passes
    assert {level for episode in again for turn in episode.turns for level in turn.completion.levels} == {"B"}


def test_reuse_goes_on_as_long_as_the_observation_is_reproduced(engine: LocalEngine, chatml: Any) -> None:
    reuse = reusing(engine, "same_seed")
    first = play(reuse, chatml, seed=1)
    reuse.close_step()
    changed = play(reuse, chatml, seed=2, changed_from_turn=2)
    before, after = (sorted(turns[:2] for turns in said(episodes)) for episodes in (first, changed))
    assert after == before, "the first hint is the same: two turns replay"
    for episode in changed:
        assert episode.turns[1].completion.levels[0] == "C"
        assert set(episode.turns[2].completion.levels) <= {"A"}, "after another hint nothing is known"
    assert reuse.stats.drafted_turns == 2 * len(first)


@pytest.mark.parametrize("mode", ["rejection_sampling", "spec_rl", "same_seed"])
def test_a_moved_policy_gives_sound_episodes(engine: LocalEngine, chatml: Any, tiny_model: Path, mode: str) -> None:
    reuse = reusing(engine, mode, top_k=300, **({"bias": 0.5} if mode == "spec_rl" else {}))
    for epoch in range(3):
        for episode in play(reuse, chatml, seed=epoch):
            view = TokenView.of(episode)
            assert len(view.levels) == len(view.behaviour_logprobs) == len(view.mask)
            assert all((level > 0) == (own == 1) for level, own in zip(view.levels, view.mask, strict=True))
            for done in (turn.completion for turn in episode.turns):
                assert len(done.logprobs) == len(done.behaviour_logprobs) == len(done.token_ids)
                assert done.top is None
        shake(engine, tiny_model, by=0.002 * (epoch + 1))
        reuse.close_step()
    assert reuse.stats.reused > 0


class Forgetful(Hints):
    def __init__(self, max_tokens: int | None = None) -> None:
        Env.__init__(self, limits=Limits(max_turns=5, max_turn_tokens=12, max_episode_tokens=max_tokens))
        self.changed_from_turn = 99

    def compact(self) -> list[Message] | None:
        said = sum(message.role is Role.ASSISTANT for message in self.dialogue)
        return [Message(role=Role.USER, content=f"after {len(self.messages)}: go on")] if said == 2 else None


def logprobs(model: Any, prompt: tuple[int, ...], response: tuple[int, ...]) -> list[float]:
    # Log-probability of each token of a response, by one pass over the whole.
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(response)), list(response)].tolist()


def test_each_segment_of_a_shortened_dialogue_has_the_log_probabilities_of_its_own_tokens(tiny_model, chatml):
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    drafts = LocalEngineConfig(dtype="float64", speculation=Speculation(min_probability=0.05, adaptive=False), **SIZE)
    how: dict[str, Any] = {"samples": 2, "sampling": Sampling(), "seed": 1}
    with LocalEngine.from_pretrained(tiny_model, config=drafts) as engine:
        epochs = [asyncio.run(evaluate(Forgetful, engine, Renderer(chatml), [3], **how)) for _ in range(2)]
        assert engine.stats().accepted > 0
    for episode in epochs[1]:
        views = TokenView.of_each(episode)
        assert [len(turns) for turns in episode.segments] == [2, 2, 1]
        done = [turn.completion for turn in episode.turns]
        tokens = [token for view in views for token in compress(view.response_ids, view.mask)]
        assert tokens == [token for one in done for token in one.token_ids], "each token once, in order"
        for view in views:
            computed = compress(logprobs(model, view.prompt_ids, view.response_ids), view.mask)
            assert [*compress(view.behaviour_logprobs, view.mask)] == pytest.approx([*computed], abs=1e-5)
        # The control: after the dialogue as it was, the same tokens have other probabilities.
        first, second = views[0], views[1]
        whole = (*first.prompt_ids, *first.response_ids, *second.prompt_ids)
        assert logprobs(model, whole, second.response_ids)[0] != pytest.approx(second.logprobs[0], abs=1e-5)
        with pytest.raises(ValueError, match="of turn 2 does not begin"):
            TokenView.of(episode)


def test_a_segment_that_outgrows_the_row_ends_the_episode_with_what_it_has(engine: LocalEngine, chatml: Any) -> None:
    how: dict[str, Any] = {"samples": 1, "sampling": Sampling(), "seed": 1}
    (episode,) = asyncio.run(evaluate(lambda: Forgetful(30), engine, Renderer(chatml), [3], **how))
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert not episode.masked
    (view,) = TokenView.of_each(episode)
    assert 0 < len(view.response_ids) <= 30
