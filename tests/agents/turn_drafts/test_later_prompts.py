import asyncio
from dataclasses import replace
from typing import Any

import pytest
from reused_turns import EXACT, LENIENT, REPLAY, TURN, Reused, after_prompt
from tabled_engine import random_policy

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig
from turntree.agents.turn_drafts.later_prompts import LaterPrompts
from turntree.agents.turn_drafts.pipeline import PrefetchedPasses, turn_key
from turntree.spec_tree import DialogueState

TURNS = 5
Answer = Any


def answered(said: tuple[int, ...]) -> tuple[int, ...]:
    return (2, len(said) % 3)


def other(said: tuple[int, ...]) -> tuple[int, ...]:
    return (3, 3)


async def dialogue(play: Reused, seed: int, answers: list[Answer], task: str = "t") -> list[Completion]:
    prompt: tuple[int, ...] = (1, 2)
    turns = []
    for number, answer in enumerate(answers):
        state = DialogueState.from_tokens(prompt, task=task)
        sampling = replace(TURN, seed=100 * seed + number)
        turns.append(await play.reuse.generate(TurnRequest(prompt, sampling, state=state)))
        prompt += turns[-1].token_ids + answer(turns[-1].token_ids)
    return turns


def episodes(play: Reused, *seeds: int, answers: list[Answer] | None = None) -> list[list[Completion]]:
    async def all_at_once() -> list[list[Completion]]:
        return await asyncio.gather(*(dialogue(play, seed, answers or [answered] * TURNS) for seed in seeds))

    return asyncio.run(all_at_once())


def tokens(played: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[turn.token_ids for turn in episode] for episode in played]


@pytest.mark.parametrize("config", [REPLAY, EXACT])
def test_the_passes_of_a_whole_episode_begin_with_its_first_turn(config: ReuseConfig) -> None:
    play = Reused(random_policy(1, 4), config)
    (first,) = episodes(play, 1)
    play.update()
    (again,) = episodes(play, 2)
    assert tokens([again]) == tokens([first])
    assert (play.stats.early, play.stats.early_used, play.stats.whole) == (TURNS - 1, TURNS - 1, TURNS)


def states(play: Reused) -> Any:
    stats = {name: getattr(play.stats, name) for name in ("turns", "drafted_turns", "offered", "reused", "whole")}
    entries = play.reuse.ledger._entries.values()
    held = [(one.key, one.turn.tokens.tolist(), one.rank, one.step, one.trained) for one in entries]
    return stats, sorted(held)


@pytest.mark.parametrize("config", [REPLAY, EXACT, LENIENT])
@pytest.mark.parametrize("changed", [False, True])
def test_what_is_sampled_and_stored_does_not_depend_on_it(config: ReuseConfig, changed: bool) -> None:
    results = []
    for early in (True, False):
        play = Reused(random_policy(1, 4), replace(config, early=early))
        said = []
        for step, law in enumerate((random_policy(1, 4), random_policy(2, 4), random_policy(2, 4))):
            late = other if changed and step else answered
            said.append(tokens(episodes(play, *range(9 * step, 9 * step + 4), answers=[answered, late, answered])))
            play.update(law)
        assert (play.stats.early > 0) is early
        results.append((said, states(play)))
    assert results[0] == results[1]


@pytest.mark.parametrize(("config", "own"), [(REPLAY, 0), (EXACT, TURNS)])
def test_the_store_of_drafts_gets_each_turn_once(config: ReuseConfig, own: int) -> None:
    """The engine inserts turns that it sampled whole, the pipeline the other ones."""
    kept: list[tuple[int, ...]] = []
    play = Reused(random_policy(1, 4), config, remember=lambda state, said: kept.append(tuple(said)))
    episodes(play, 1)
    play.update()
    assert kept == [], "the engine stores its own turns"
    play.engine.drawn.clear()
    (again,) = episodes(play, 2)
    assert play.stats.early_used == TURNS - 1
    assert kept == tokens([again])[0][:own]


def test_a_pass_that_nobody_waits_for_ends_before_the_engine_sleeps() -> None:
    play = Reused(after_prompt(random_policy(1, 4)), REPLAY)
    early, request = PrefetchedPasses(), TurnRequest((1,), TURN)

    def begin() -> bool:
        return early.begin(turn_key(request), lambda: play.engine.generate(request))

    async def check() -> None:
        assert begin()
        assert not begin(), "it is begun"
        (task,) = early.drop()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert await early.result(turn_key(request)) is None
        play.engine.edit = lambda turn: 1 / 0
        begin()
        await asyncio.sleep(0.01)
        assert await early.result(turn_key(request)) is None

    asyncio.run(check())


def test_an_early_pass_that_was_aborted_is_asked_for_again_by_its_request() -> None:
    play = Reused(random_policy(1, 4), REPLAY)
    (first,) = episodes(play, 1)
    play.update()
    own = play.engine.generate

    async def spoiled(request: TurnRequest) -> Completion:
        turn, calls[turn_key(request)] = await own(request), calls.get(turn_key(request), 0) + 1
        early = len(request.prompt_ids) > 2 and calls[turn_key(request)] == 1
        return replace(turn, token_ids=(), finish_reason=FinishReason.ABORT) if early else turn

    calls: dict[Any, int] = {}
    play.engine.generate = spoiled  # type: ignore[method-assign]
    (again,) = episodes(play, 2)
    assert tokens([again]) == tokens([first])
    assert (play.stats.early, play.stats.early_used) == (TURNS - 1, 0)


def test_an_update_ends_what_was_begun_under_the_old_weights() -> None:
    play = Reused(random_policy(1, 4), REPLAY)
    episodes(play, 1)
    play.update()
    ended: list[TurnRequest] = []
    generate = play.engine.generate

    async def slow(request: TurnRequest) -> Completion:
        if len(request.prompt_ids) == 2:  # the episode's first turn
            return await generate(request)
        try:
            await asyncio.sleep(60)
            raise AssertionError("it went on")
        finally:
            ended.append(request)

    async def step() -> None:
        play.engine.generate = slow  # type: ignore[method-assign]
        await dialogue(play, 2, [answered])
        await play.reuse.cancel_prefetch()
        assert len(ended) == TURNS - 1
        play.engine.generate = generate  # type: ignore[method-assign]

    asyncio.run(step())
    play.update(random_policy(2, 4))
    play.engine.drawn.clear()
    (again,) = episodes(play, 3)
    assert {turn.weights_version for turn in again} == {2}


def test_forecasts_that_do_not_come_true_are_made_less() -> None:
    later, state = LaterPrompts(), DialogueState(exact=1, task="t")
    deep = later.depth
    for number in range(100):
        later.reach((1, 5, 100 + number % 2 + 2 * (number > 50)), state)
        later.end((1,), (5,), (), state)
    shallow = later.depth
    for _ in range(200):
        later.reach((1, 5, 102), state)
        later.end((1,), (5,), (), state)
    assert deep > 0
    assert later.depth > max(4, shallow)
    for _ in range(200):
        later.end((1,), (6,), (5,), state)
    assert later.depth == 0


def test_what_is_kept_is_bounded() -> None:
    later, state = LaterPrompts(most=3), DialogueState(exact=1, task="t")
    for number in range(10):
        later.end((number,), (5,), (), state)
        later.reach((number, 5, 6), state)
    assert len(later._answers) == 3
    assert not any(later._open.values())
    later.end((1,), (5,), (), state)
    later.close_step()
    assert not later._open
