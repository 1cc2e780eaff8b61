from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare
from tabled_engine import Law, TabledEngine, random_policy

from turntree.agents import prefix_reuse, turn_verification
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, ScoringEngine
from turntree.agents.prefix_reuse import PrefixReuse
from turntree.agents.reuse_config import ReuseConfig, ReuseMode
from turntree.agents.rollout import derive_seed
from turntree.agents.turn_cut import Redraw
from turntree.agents.turn_verification import Verification
from turntree.spec_tree import DialogueState
from turntree.spec_tree.ledger import Ledger, Ticket
from turntree.spec_tree.level import Level
from turntree.spec_tree.monitor import MonitorSums
from turntree.spec_tree.verify import behaviour

EXACT = ReuseConfig(mode=ReuseMode.EXACT)
LENIENT = ReuseConfig(mode=ReuseMode.LENIENT, preset="grpo")
REPLAY = ReuseConfig(mode=ReuseMode.REPLAY)
STOP = 0


def fixed(*p: float) -> Law:
    law = np.array(p) / np.sum(p)
    return lambda context: law


def after_prompt(policy: Law) -> Law:
    """The same turn's law after every prompt of one token: each prompt is a state of its own."""
    return lambda context: policy(context[1:])


def engine_and_reuse(policy: Law, config: ReuseConfig, vocabulary: int = 4) -> tuple[TabledEngine, PrefixReuse]:
    engine = TabledEngine(policy)
    return engine, PrefixReuse(engine, config, vocabulary=vocabulary, seed=0)


def ask(reuse: PrefixReuse, prompt: tuple[int, ...] = (9,), **changes: Any) -> Completion:
    sampling = Sampling(**{"max_tokens": 6, "stop_token_ids": (STOP,), "seed": 5, **changes})
    return asyncio.run(reuse.generate(prompt, sampling))


def update(engine: TabledEngine, reuse: PrefixReuse, policy: Law, *, trained: bool = True) -> None:
    engine.policy, engine.version = policy, engine.version + 1
    reuse.close_step(trained=trained)


def many(reuse: PrefixReuse, count: int, **changes: Any) -> list[Completion]:
    """One turn at each of ``count`` states."""

    async def play() -> list[Completion]:
        sampling = Sampling(**{"max_tokens": 2, "seed": 5, **changes})
        return [await reuse.generate((n,), replace(sampling, seed=n)) for n in range(count)]

    return asyncio.run(play())


def fit(turns: list[Completion], policy: Law, vocabulary: int) -> float:
    """Chi-square p-value of turns of two tokens against the policy's own law of two tokens."""
    counts = Counter(turn.token_ids[:2] for turn in turns)
    cells = [(a, b) for a in range(vocabulary) for b in range(vocabulary)]
    expected = np.array([policy(())[a] * policy((a,))[b] for a, b in cells]) * len(turns)
    seen = np.array([counts[cell] for cell in cells], float)
    order = np.argsort(-expected)
    seen, expected = merge(seen[order], expected[order])
    return float(chisquare(seen, expected).pvalue)


def merge(seen: NDArray[Any], expected: NDArray[Any], least: float = 5.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Put the rarest cells together until each is expected ``least`` times."""
    while expected[-1] < least and len(expected) > 2:
        seen = np.append(seen[:-2], seen[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return seen, expected


def replayed(config: ReuseConfig, vocabulary: int, count: int = 600) -> tuple[list[Completion], Law, PrefixReuse]:
    """Turns of a policy that began with another one's, at ``count`` states."""
    old, new = random_policy(1, vocabulary), random_policy(2, vocabulary)
    engine, reuse = engine_and_reuse(after_prompt(old), config, vocabulary)
    many(reuse, count)
    update(engine, reuse, after_prompt(new))
    return many(reuse, count), new, reuse


def drawn_from_p(top: Any, turn: Any, position: int, coin: float, lenience: float) -> Redraw:
    """The rule that SPEC-RL's code has: the rejected position is drawn from the policy itself."""
    p = np.exp(top.logprobs[position].astype(float)).cumsum()
    return Redraw(int(top.ids[position][np.searchsorted(p, coin * p[-1])]))


def test_it_is_an_engine_that_scores() -> None:
    assert isinstance(engine_and_reuse(fixed(1, 1), EXACT)[1], ScoringEngine)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_exact_reuse_says_what_the_policy_of_now_says(top_k: int) -> None:
    turns, policy, reuse = replayed(ReuseConfig(mode=ReuseMode.EXACT, top_k=top_k), 4)
    assert reuse.stats.reused > 100
    assert fit(turns, policy, 4) > 1e-3


def test_rejected_positions_drawn_from_the_policy_itself_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: SPEC-RL's released rule, lenience 1."""
    monkeypatch.setattr(turn_verification, "redraw_known", drawn_from_p)
    turns, policy, _ = replayed(EXACT, 4)
    assert fit(turns, policy, 4) < 1e-6


def test_tokens_beyond_the_recorded_ones_are_drawn_from_the_whole_law() -> None:
    turns, policy, reuse = replayed(ReuseConfig(mode=ReuseMode.EXACT, top_k=3), 12)
    assert reuse.stats.whole_laws > 25
    assert fit(turns, policy, 12) > 1e-3


def test_lenient_reuse_is_biased_and_marked_as_such() -> None:
    turns, policy, _ = replayed(ReuseConfig(mode=ReuseMode.LENIENT, bias=1.0), 4)
    assert fit(turns, policy, 4) < 1e-6
    assert all(set(turn.levels) <= {"D", "A"} and turn.levels[0] == "D" for turn in turns)


def test_the_recorded_behaviour_is_the_law_that_drew_the_token() -> None:
    old, new = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    engine, reuse = engine_and_reuse(fixed(*old), LENIENT)
    many(reuse, 300, max_tokens=1)
    update(engine, reuse, fixed(*new))
    law = behaviour(new, old, LENIENT.lenience)
    turns = many(reuse, 300, max_tokens=1)
    for turn in turns:
        assert turn.behaviour_logprobs[0] == pytest.approx(np.log(law[turn.token_ids[0]]), abs=1e-5)
        assert turn.logprobs[0] == pytest.approx(np.log(new[turn.token_ids[0]]), abs=1e-5)
    seen = np.bincount([turn.token_ids[0] for turn in turns], minlength=4)
    assert chisquare(seen, law * 300).pvalue > 1e-3


def test_the_exact_behaviour_is_the_policy() -> None:
    turns, policy, _ = replayed(ReuseConfig(mode=ReuseMode.EXACT, top_k=2), 5, count=100)
    for turn in turns:
        laws = [policy(turn.token_ids[:place]) for place in range(2)]
        own = [float(np.log(p[t])) for p, t in zip(laws, turn.token_ids, strict=True)]
        assert turn.behaviour_logprobs == pytest.approx(own, abs=1e-5)
        assert turn.logprobs == pytest.approx(own, abs=1e-5)


def pairs_of_siblings() -> float:
    """Chi-square p-value of what two siblings at one state say, against two draws from the policy."""
    old, new = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    engine, reuse = engine_and_reuse(fixed(*old), EXACT, 3)

    async def play(count: int = 700) -> list[tuple[int, ...]]:
        sampling = Sampling(max_tokens=1)
        return [tuple([(await reuse.generate((n,), sampling)).token_ids[0] for _ in range(2)]) for n in range(count)]

    asyncio.run(play())
    update(engine, reuse, fixed(*new))
    counts = Counter(asyncio.run(play()))
    cells = [(a, b) for a in range(3) for b in range(3)]
    seen = np.array([counts[cell] for cell in cells])
    return float(chisquare(seen, np.outer(new, new).ravel() * seen.sum()).pvalue)


def test_siblings_that_begin_with_old_turns_are_independent_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pairs_of_siblings() > 1e-3

    def used_again(ledger: Ledger, number: int) -> Ticket:
        return Ticket(number, ledger._entries[number].turn, Level.C)

    monkeypatch.setattr(Ledger, "_use", used_again)
    monkeypatch.setattr(prefix_reuse, "derive_seed", lambda *parts: 0 if parts[1:] == (2,) else derive_seed(*parts))
    assert pairs_of_siblings() < 1e-6, "the control hands one turn out twice"


# What SPEC-RL's released code does wrong, one test each (the missing residual is above).


def share_of_token_one(config: ReuseConfig, epochs: int) -> float:
    """How often token 1 is said after a policy has left it, 20 % an epoch, from 90 % to 15 %."""
    chance = 0.9
    engine, reuse = engine_and_reuse(fixed(1 - chance, chance), config, 2)
    for _ in range(epochs):
        many(reuse, 120, max_tokens=1)
        chance *= 0.8
        update(engine, reuse, fixed(1 - chance, chance))
    return float(np.mean([turn.token_ids[0] for turn in many(reuse, 120, max_tokens=1)]))


def test_stored_turns_cannot_hold_back_a_policy_that_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ratchet: the stored probability becomes the new one at each reuse, so small steps never add up."""
    assert share_of_token_one(LENIENT, epochs=8) < LENIENT.lenience * 0.9 * 0.8**8 + 0.15
    ours = turn_verification.behaviour_of

    def refreshed(tokens: Any, logprobs: Any, turn: Any, top: Any, lenience: float) -> Any:
        return ours(tokens, logprobs, turn, top, lenience)._replace(top=top)

    monkeypatch.setattr(turn_verification, "behaviour_of", refreshed)
    assert share_of_token_one(LENIENT, epochs=8) > 0.8, "the control must show the ratchet"


def coins_of(reuse: PrefixReuse, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seeds: list[int] = []
    inner = turn_verification.verify

    async def spy(*args: Any, **kwargs: Any) -> Verification:
        seeds.append(kwargs["seed"])
        return await inner(*args, **kwargs)

    monkeypatch.setattr(prefix_reuse, "verify", spy)
    return seeds


def test_coins_and_noise_are_new_in_every_step_though_the_callers_seeds_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Theirs are the same at every step."""
    engine, reuse = engine_and_reuse(random_policy(1, 4), EXACT)
    seeds = coins_of(reuse, monkeypatch)
    for epoch in range(6):
        ask(reuse, seed=5)
        update(engine, reuse, random_policy(epoch + 2, 4))
    noise = [sampling.seed for _, sampling in engine.drawn]
    assert len(set(seeds)) == len(seeds) == 5
    assert len(set(noise)) == len(noise)


def test_a_turn_that_is_reused_whole_has_no_token_more_and_costs_one_pass() -> None:
    """Theirs keeps padding as tokens when every row is reused, and trains on a pad token that is no end token."""
    engine, reuse = engine_and_reuse(fixed(3, 1, 1, 1), EXACT)
    first = ask(reuse)
    assert first.finish_reason is FinishReason.STOP
    update(engine, reuse, engine.policy)
    passes, drawn = engine.passes, len(engine.drawn)
    second = ask(reuse)
    assert second.token_ids == first.token_ids
    assert second.finish_reason is FinishReason.STOP
    assert (engine.passes - passes, len(engine.drawn) - drawn) == (1, 0)
    assert len(second.logprobs) == len(second.levels) == len(second.behaviour_logprobs) == len(second.token_ids)
    assert reuse.stats.whole == 1


def test_a_turn_that_is_cut_at_its_first_token_is_sampled_anew() -> None:
    """Theirs crashes when every row is cut at 0."""
    engine, reuse = engine_and_reuse(fixed(0, 1, 0, 0), EXACT)
    ask(reuse)
    update(engine, reuse, fixed(1, 0, 3, 3))
    turn = ask(reuse)
    assert 1 not in turn.token_ids
    assert turn.draft.accepted == reuse.stats.reused == 0
    assert turn.levels[0] == "C"
    assert set(turn.levels[1:]) <= {"A"}


def test_saved_tokens_mean_the_same_everywhere() -> None:
    """Theirs reads avg_saved_tokens with opposite meanings."""
    turns, _, reuse = replayed(EXACT, 4, count=50)
    assert reuse.stats.reused == sum(turn.draft.accepted for turn in turns)
    assert reuse.stats.reused == sum(sum(turn.accepted) for turn in turns)
    assert reuse.stats.offered == sum(turn.draft.drafted for turn in turns)


def test_storage_is_bounded() -> None:
    """Theirs writes a gigabyte a step and deletes nothing."""
    engine, reuse = engine_and_reuse(fixed(1, 3), replace(EXACT, max_tokens=60), 2)
    for _ in range(5):
        many(reuse, 20, max_tokens=6)
        update(engine, reuse, engine.policy)
        assert reuse.ledger.stats().charged <= 60


# When a stored turn is used.


def test_a_stored_turn_is_used_once() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse)
    update(engine, reuse, engine.policy)
    ask(reuse, seed=1)
    ask(reuse, seed=2)
    assert reuse.stats.tickets == 1


def test_an_episode_that_is_tried_again_is_no_second_draw() -> None:
    _, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    assert ask(reuse, seed=1).token_ids == ask(reuse, seed=1).token_ids
    assert reuse.ledger.stats().turns == 1
    ask(reuse, seed=2)
    assert reuse.ledger.stats().turns == 2


def test_siblings_that_are_asked_at_once_never_share_a_stored_turn() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    for seed in range(3):
        ask(reuse, seed=seed)
    update(engine, reuse, engine.policy)
    inner = engine.score

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return await inner(*args, **kwargs)

    engine.score = slow  # type: ignore[method-assign]

    async def siblings() -> list[Completion]:
        how = Sampling(max_tokens=6, stop_token_ids=(STOP,))
        return await asyncio.gather(*(reuse.generate((9,), replace(how, seed=10 + n)) for n in range(5)))

    levels = [turn.levels[:1] for turn in asyncio.run(siblings())]
    assert sorted(levels) == ["", "", "C", "C", "C"]
    assert reuse.ledger.stats().used == 3


def test_a_turn_that_is_cancelled_while_it_is_scored_has_used_its_ticket_and_leaves_nothing() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse)
    update(engine, reuse, engine.policy)
    inner = engine.score

    async def cancelled() -> None:
        started = asyncio.Event()

        async def never(*args: Any, **kwargs: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        engine.score = never  # type: ignore[method-assign]
        task = asyncio.create_task(reuse.generate((9,), Sampling(max_tokens=6, stop_token_ids=(STOP,), seed=5)))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert (reuse.ledger.stats().used, reuse.ledger.stats().turns) == (1, 0)
    engine.score = inner  # type: ignore[method-assign]
    assert set(ask(reuse).levels) <= {"A"}
    assert reuse.ledger.stats().turns == 1


def test_a_turn_that_is_given_up_is_neither_stored_nor_drafted_from() -> None:
    kept: list[Any] = []
    engine = TabledEngine(fixed(1, 0, 0, 0))
    reuse = PrefixReuse(engine, EXACT, vocabulary=4, remember=lambda state, tokens: kept.append(tokens), seed=0)
    ask(reuse)
    update(engine, reuse, fixed(0, 1, 1, 1))
    inner = engine.generate

    async def aborted(*args: Any, **kwargs: Any) -> Completion:
        return replace(await inner(*args, **kwargs), finish_reason=FinishReason.ABORT)

    engine.generate = aborted  # type: ignore[method-assign]
    how = Sampling(max_tokens=6, stop_token_ids=(STOP,), seed=5)
    turn = asyncio.run(reuse.generate((9,), how, state=DialogueState.from_tokens((9,))))
    assert turn.finish_reason is FinishReason.ABORT
    assert (reuse.ledger.stats().used, reuse.ledger.stats().turns, kept) == (1, 0, [])


def test_turns_of_the_running_step_are_not_used() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse, seed=1)
    ask(reuse, seed=2)
    assert reuse.stats.tickets == 0
    assert not engine.scored


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"repetition_penalty": 1.1}]
)
def test_a_turn_drawn_under_other_transforms_is_no_draw_of_this_law(changes: dict[str, float]) -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse)
    update(engine, reuse, engine.policy)
    ask(reuse, **changes)
    assert reuse.stats.tickets == 0
    ask(reuse)
    assert reuse.stats.tickets == 1


def test_greedy_turns_have_no_ratio() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse, temperature=0.0)
    update(engine, reuse, engine.policy)
    ask(reuse, temperature=0.0)
    assert reuse.stats.tickets == 0
    assert reuse.ledger.stats().added == 0, "they would only drive others out"


def test_another_prompt_finds_nothing() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    ask(reuse, (1, 2, 3))
    update(engine, reuse, engine.policy)
    ask(reuse, (1, 2, 4))
    assert reuse.stats.tickets == 0


def test_a_share_of_the_turns_can_be_kept_fresh() -> None:
    engine, reuse = engine_and_reuse(after_prompt(random_policy(1, 4)), replace(EXACT, fresh=0.5))
    many(reuse, 200)
    update(engine, reuse, engine.policy)
    many(reuse, 200)
    assert 70 < reuse.stats.tickets < 130


@pytest.mark.parametrize("changes", [{"presence_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_penalties_that_count_the_turns_own_tokens_are_refused_where_turns_are_continued(
    changes: dict[str, float],
) -> None:
    _, reuse = engine_and_reuse(fixed(1, 3), EXACT, 2)
    with pytest.raises(ValueError, match="use mode replay"):
        ask(reuse, **changes)


def test_an_engine_that_records_no_laws_is_no_less_exact() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3, 3, 3), EXACT)
    inner = engine.generate

    async def bare(*args: Any, **kwargs: Any) -> Completion:
        return replace(await inner(*args, **kwargs), top=None)

    engine.generate = bare  # type: ignore[method-assign]
    ask(reuse)
    assert reuse.ledger.stats().turns == 0


# Where a turn ends.


def test_a_shorter_turn_is_asked_for_and_given() -> None:
    engine, reuse = engine_and_reuse(fixed(0, 1, 1, 1), EXACT)
    ask(reuse, max_tokens=6)
    update(engine, reuse, engine.policy)
    turn = ask(reuse, max_tokens=3)
    assert len(turn.token_ids) == 3
    assert turn.finish_reason is FinishReason.LENGTH


def test_a_longer_turn_goes_on_where_the_stored_one_had_to_end() -> None:
    engine, reuse = engine_and_reuse(fixed(0, 1, 1, 1), EXACT)
    first = ask(reuse, max_tokens=3)
    update(engine, reuse, engine.policy)
    turn = ask(reuse, max_tokens=6)
    assert turn.token_ids[:3] == first.token_ids
    assert len(turn.token_ids) == 6
    assert turn.levels == "CCCAAA"


def test_a_token_that_ends_turns_now_ends_the_stored_one() -> None:
    engine, reuse = engine_and_reuse(fixed(0, 1, 1, 1), EXACT)
    first = ask(reuse, max_tokens=6)
    update(engine, reuse, engine.policy)
    stop = first.token_ids[1]
    turn = ask(reuse, max_tokens=6, stop_token_ids=(stop,))
    assert turn.token_ids == first.token_ids[: first.token_ids.index(stop) + 1]
    assert turn.finish_reason is FinishReason.STOP


def test_a_stored_turn_that_filled_the_context_is_not_continued() -> None:
    engine, reuse = engine_and_reuse(fixed(0, 1, 1, 1), EXACT)
    engine.context = 5
    first = ask(reuse, (7, 7))
    assert len(first.token_ids) == 3
    update(engine, reuse, engine.policy)
    turn = ask(reuse, (7, 7))
    assert turn.token_ids == first.token_ids
    assert turn.finish_reason is FinishReason.LENGTH


def test_a_turn_that_is_cut_at_the_end_of_the_context_ends_there() -> None:
    engine = TabledEngine(fixed(1, 0, 0, 0), context=5)
    reuse = PrefixReuse(engine, EXACT, vocabulary=4, max_context=5, seed=0)
    ask(reuse, (7, 7, 7, 7))
    update(engine, reuse, fixed(0, 1, 1, 1))
    turn = ask(reuse, (7, 7, 7, 7))
    assert len(turn.token_ids) == 1
    assert STOP not in turn.token_ids
    assert turn.finish_reason is FinishReason.LENGTH


def test_the_top_tokens_are_given_to_those_who_asked() -> None:
    engine, reuse = engine_and_reuse(random_policy(1, 4), EXACT)
    assert ask(reuse).top is None
    update(engine, reuse, random_policy(2, 4))
    top = ask(reuse, top_logprobs=2).top
    assert top is not None
    assert top.ids.shape[1] == 2


def test_truncated_laws_are_weighed_after_truncation_and_reported_before() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 2, 3, 4), EXACT)
    for seed in range(20):
        ask(reuse, (seed,), top_k=2, seed=seed, max_tokens=1)
    update(engine, reuse, fixed(4, 3, 2, 1))
    for seed in range(20):
        turn = ask(reuse, (seed,), top_k=2, seed=seed, max_tokens=1)
        assert turn.token_ids[0] in (0, 1)
        assert turn.logprobs[0] == pytest.approx(np.log([0.4, 0.3][turn.token_ids[0]]), abs=1e-5)
        assert turn.behaviour_logprobs[0] == pytest.approx(np.log([4 / 7, 3 / 7][turn.token_ids[0]]), abs=1e-5)


# Replay.


def replay_once() -> tuple[Completion, Completion, int]:
    """A turn replayed under a policy that has moved a little, plain decoding's own, and the passes of the first."""
    old, other = random_policy(1, 4), random_policy(2, 4)

    def moved(context: tuple[int, ...]) -> NDArray[np.float64]:
        return 0.9 * old(context) + 0.1 * other(context)

    engine, reuse = engine_and_reuse(old, REPLAY)
    ask(reuse, max_tokens=30, stop_token_ids=())
    update(engine, reuse, moved)
    passes = engine.passes
    turn = ask(reuse, max_tokens=30, stop_token_ids=(), seed=77)
    plain = asyncio.run(TabledEngine(moved).generate((9,), Sampling(max_tokens=30, seed=5)))
    return turn, plain, engine.passes - passes


def test_replay_is_plain_decoding_with_the_stored_seed_in_fewer_passes() -> None:
    turn, plain, passes = replay_once()
    assert turn.token_ids == plain.token_ids
    assert passes < 30
    assert turn.levels == "C" * 30


def test_a_replayed_turn_replays_again_and_never_becomes_better_than_it_is() -> None:
    engine, reuse = engine_and_reuse(random_policy(1, 4), REPLAY)
    ask(reuse)
    update(engine, reuse, random_policy(2, 4), trained=True)
    ask(reuse)
    update(engine, reuse, random_policy(3, 4), trained=False)
    turn = ask(reuse)
    assert set(turn.levels) == {"C"}
    assert reuse.stats.tickets == 2


# Levels.


def test_a_turn_that_was_sampled_ahead_is_level_b_and_an_emitted_one_level_c() -> None:
    engine, reuse = engine_and_reuse(random_policy(1, 4), EXACT)
    asyncio.run(reuse.sample_ahead((1,), Sampling(max_tokens=6, stop_token_ids=(STOP,))))
    ask(reuse, (2,))
    update(engine, reuse, engine.policy)
    assert ask(reuse, (1,)).levels[0] == "B"
    assert ask(reuse, (2,)).levels[0] == "C"


def test_a_turn_that_was_sampled_ahead_shares_no_noise_with_one_that_is_trained_on() -> None:
    engine, reuse = engine_and_reuse(random_policy(1, 4), EXACT)
    asyncio.run(reuse.sample_ahead((1,), Sampling(max_tokens=6, stop_token_ids=(STOP,), seed=5)))
    ask(reuse, (1,), seed=5)
    assert engine.drawn[0][1].seed != engine.drawn[1][1].seed
    assert reuse.ledger.stats().turns == 2


def test_fresh_turns_are_level_a() -> None:
    _, reuse = engine_and_reuse(random_policy(1, 4), EXACT)
    assert set(ask(reuse).levels) <= {"A"}


# Monitors.


def sums(turns: list[Completion]) -> MonitorSums:
    total = MonitorSums()
    for draft in (turn.draft for turn in turns):
        total += MonitorSums(
            accepted=draft.matched,
            expected=draft.expected,
            variance=draft.variance,
            surprise=draft.surprise,
            entropy=draft.entropy,
            entropy_variance=draft.entropy_variance,
        )
    return total


def test_the_monitors_see_nothing_in_exact_reuse_and_the_released_rule_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = sums(replayed(EXACT, 4, count=400)[0])
    assert exact.acceptance_z is not None
    assert exact.entropy_z is not None
    assert abs(exact.acceptance_z) < 4
    assert abs(exact.entropy_z) < 4
    monkeypatch.setattr(turn_verification, "redraw_known", drawn_from_p)
    released = sums(replayed(EXACT, 4, count=400)[0])
    assert released.acceptance_z is not None
    assert released.acceptance_z < -4


def test_drafts_of_a_replayed_turn_are_no_test_of_chance() -> None:
    """A store of drafts has seen what the same noise said before."""
    engine, reuse = engine_and_reuse(random_policy(1, 4), REPLAY)
    inner = engine.generate

    async def tested(*args: Any, **kwargs: Any) -> Completion:
        turn = await inner(*args, **kwargs)
        return replace(turn, draft=replace(turn.draft, tested=3, matched=3, expected=1.0, variance=0.5))

    engine.generate = tested  # type: ignore[method-assign]
    assert ask(reuse).draft.tested == 3
    update(engine, reuse, engine.policy)
    turn = ask(reuse)
    assert (turn.draft.tested, turn.draft.matched, turn.draft.expected, turn.draft.variance) == (0, 0, 0.0, 0.0)
    assert turn.draft.entropy > 0


def test_a_mode_that_reuses_nothing_passes_everything_on() -> None:
    engine, reuse = engine_and_reuse(fixed(1, 3), ReuseConfig())
    ask(reuse)
    assert engine.drawn[0][1].top_logprobs == 0
    assert reuse.ledger.stats().added == 0


def kept_lengths(states: int = 300) -> list[int]:
    """Lengths of the turns that a ledger with room for two keeps of six siblings, which finish the shortest first."""
    lengths = []
    for place in range(states):
        engine = TabledEngine(fixed(1, 1))
        reuse = PrefixReuse(engine, replace(EXACT, max_tokens=4), vocabulary=2)
        inner = engine.generate

        async def timed(*args: Any, inner: Any = inner, **kwargs: Any) -> Completion:
            turn: Completion = await inner(*args, **kwargs)
            for _ in turn.token_ids:
                await asyncio.sleep(0)
            return turn

        async def siblings(reuse: PrefixReuse = reuse, place: int = place) -> None:
            how = Sampling(max_tokens=2, stop_token_ids=(STOP,))
            await asyncio.gather(*(reuse.generate((9,), replace(how, seed=6 * place + n)) for n in range(6)))

        engine.generate = timed  # type: ignore[method-assign]
        asyncio.run(siblings())
        lengths += [len(entry.turn.tokens) for entry in reuse.ledger._entries.values()]
    return lengths


def test_turns_that_do_not_fit_are_dropped_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = kept_lengths()
    assert len(lengths) == 600
    assert abs(lengths.count(1) - 300) < 50  # 4 standard deviations
    arrival = iter(range(10_000))
    monkeypatch.setattr(
        prefix_reuse, "derive_seed", lambda *parts: next(arrival) if parts[1:] == (6,) else derive_seed(*parts)
    )
    assert kept_lengths().count(1) < 200, "the control keeps those that came last"


def test_whole_turns_reach_the_store_of_drafts() -> None:
    kept: list[tuple[DialogueState, tuple[int, ...]]] = []
    engine = TabledEngine(random_policy(1, 4))
    reuse = PrefixReuse(engine, EXACT, vocabulary=4, remember=lambda state, tokens: kept.append((state, tuple(tokens))))
    state = DialogueState.from_tokens((9,), task="t")
    sampling = Sampling(max_tokens=6, seed=1)
    asyncio.run(reuse.generate((9,), sampling, state=state))
    assert not kept, "the engine itself saw that turn"
    update(engine, reuse, random_policy(2, 4))
    turn = asyncio.run(reuse.generate((9,), sampling, state=state))
    assert kept == [(state, turn.token_ids)]
