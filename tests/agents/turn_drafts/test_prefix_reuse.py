import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from reused_turns import EXACT, REPLAY, STOP, TURN, Reused, after_prompt, fixed
from tabled_engine import Law, TabledEngine, random_policy
from tables import table

from turntree.agents.engines.protocol import Completion, FinishReason, ScoringEngine, TurnRequest
from turntree.agents.turn_drafts import pipeline
from turntree.agents.turn_drafts.config import ReuseConfig
from turntree.agents.turn_drafts.turn_verification import Verification
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import Ledger

SHORT, LONG = fixed(1, 3, 3, 3), fixed(0, 1, 1, 1)
"""Turns that end before long, and those that only a limit ends."""


def stored(policy: Law, *, then: Law | None = None, **asked: Any) -> tuple[Reused, Completion]:
    play = Reused(policy)
    turn = play.ask(**asked)
    play.update(then)
    return play, turn


# When a stored turn is used.


@pytest.mark.parametrize("changes", [*table(__file__, "other_laws"), {"prompt": (1, 2, 4)}])
def test_a_turn_of_another_law_or_prompt_is_left_and_one_of_the_same_used_once(changes: dict[str, Any]) -> None:
    play, _ = stored(SHORT, prompt=(1, 2, 3))
    play.ask(**{"prompt": (1, 2, 3), **changes})
    assert play.stats.drafted_turns == 0
    for seed in (1, 2):
        play.ask((1, 2, 3), seed=seed)
        assert play.stats.drafted_turns == 1


@pytest.mark.parametrize("config", [REPLAY, EXACT])
def test_a_validations_turns_begin_with_no_stored_one_and_are_not_stored(config: ReuseConfig) -> None:
    play = Reused(SHORT, config)
    for reuse, drafted_turns, held in ((True, 0, 1), (False, 0, 1), (True, 1, 1)):
        asyncio.run(play.reuse.generate(TurnRequest((9,), replace(TURN, seed=3), reuse=reuse)))
        play.update(None)
        assert (play.stats.drafted_turns, play.held.turns) == (drafted_turns, held)


def test_greedy_turns_have_no_ratio() -> None:
    play, _ = stored(SHORT, temperature=0.0)
    play.ask(temperature=0.0)
    assert play.stats.drafted_turns == 0
    assert play.held.added == 0, "they would only drive others out"


def test_turns_of_the_running_step_are_not_used_and_one_that_is_tried_again_is_no_second_draw() -> None:
    play = Reused(SHORT)
    assert play.ask(seed=1).token_ids == play.ask(seed=1).token_ids
    assert play.held.turns == 1
    play.ask(seed=2)
    assert (play.held.turns, play.stats.drafted_turns, play.engine.scored) == (2, 0, [])


def test_a_share_of_the_turns_can_be_kept_fresh() -> None:
    play = Reused(after_prompt(random_policy(1, 4)), replace(EXACT, fresh=0.5))
    play.many(200)
    play.update()
    play.many(200)
    assert 70 < play.stats.drafted_turns < 130


def test_siblings_that_are_asked_at_once_never_share_a_stored_turn() -> None:
    play = Reused(SHORT)
    for seed in range(3):
        play.ask(seed=seed)
    play.update()
    assert sorted(turn.levels[:1] for turn in play.siblings(5)) == ["", "", "C", "C", "C"]
    assert play.held.used == 3


@pytest.mark.parametrize(("numbered", "own"), [(True, True), (False, False)])
def test_numbered_siblings_begin_with_their_own_stored_turns_whoever_asks_first(numbered: bool, own: bool) -> None:
    play = Reused(fixed(1, 9, 9, 9), REPLAY)

    def turns(order: Iterable[int], seed: int) -> dict[int, tuple[int, ...]]:
        how = {number: replace(TURN, seed=seed + number) for number in order}
        asked = {n: TurnRequest((9,), sampling, sample=n if numbered else 0) for n, sampling in how.items()}
        return {number: asyncio.run(play.reuse.generate(request)).token_ids for number, request in asked.items()}

    first = turns(range(6), 10)
    assert len({*first.values()}) == 6
    again = []
    for order in (range(6), reversed(range(6))):
        play.update()
        again.append(turns(order, 20))
    assert (again == [first, first]) is own


def test_a_turn_that_is_cancelled_while_it_is_scored_has_used_its_replayed_turn_and_leaves_nothing() -> None:
    play, _ = stored(SHORT)

    async def cancelled() -> None:
        started = asyncio.Event()

        async def never() -> None:
            started.set()
            await asyncio.Event().wait()

        play.engine.before_score = never
        task = asyncio.create_task(play.reuse.generate(TurnRequest((9,), TURN)))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert (play.held.used, play.held.turns) == (1, 0)
    assert set(play.ask().levels) <= {"A"}
    assert play.held.turns == 1


def test_whole_turns_reach_the_store_of_drafts_and_those_that_are_given_up_no_store() -> None:
    kept: list[Any] = []
    play = Reused(fixed(1, 0, 0, 0), remember=lambda state, tokens: kept.append((state, tuple(tokens))))
    state = DialogueState.from_tokens((9,), task="t")
    play.ask(state=state)
    assert not kept, "the engine itself saw that turn"
    play.update(LONG)
    turn = play.ask(state=state)
    assert kept == [(state, turn.token_ids)]
    play.update(fixed(0, 1, 0, 0))
    play.engine.edit = lambda turn: replace(turn, finish_reason=FinishReason.ABORT)
    assert play.ask(state=state).finish_reason is FinishReason.ABORT
    assert (play.held.used, play.held.turns, len(kept)) == (2, 0, 1)


@pytest.mark.parametrize("changes", [{"presence_penalty": 0.5}, {"frequency_penalty": 0.5}])
def test_penalties_that_count_the_turns_own_tokens_are_refused_where_turns_are_continued(changes):
    with pytest.raises(ValueError, match="use mode same_seed"):
        Reused(fixed(1, 3), vocabulary=2).ask(**changes)


def test_a_mode_that_reuses_nothing_passes_everything_on() -> None:
    play = Reused(fixed(1, 3), ReuseConfig())
    assert isinstance(play.reuse, ScoringEngine)
    play.ask()
    assert (play.engine.drawn[0][1].top_logprobs, play.held.added) == (0, 0)


class InOrder(Ledger):
    """Control: keeps the turns that came last."""

    def add(self, *what: Any, rank: int, **how: Any) -> int:
        return super().add(*what, rank=self.stats().added, **how)


def short_turns_kept(ledger: type[Ledger]) -> int:
    """Short turns among the 600 that 300 ledgers keep, two each of six siblings of which short ones end first."""
    count = 0
    for position in range(300):
        play = Reused(fixed(1, 1), vocabulary=2)
        play.reuse.stored.ledger = ledger(max_tokens=4)
        play.siblings(6, max_tokens=2, prompt=(9, position))
        assert play.held.turns == 2
        count += 2 * 2 - play.held.tokens
    return count


def test_turns_that_do_not_fit_are_dropped_whatever_their_length() -> None:
    assert abs(short_turns_kept(Ledger) - 300) < 50  # 4 standard deviations
    assert short_turns_kept(InOrder) < 200, "the control keeps those that came last"


# Where a turn ends.


def test_a_turn_that_is_reused_whole_has_no_token_more_and_costs_one_pass() -> None:
    """SPEC-RL's code keeps padding as tokens if every row is reused, and trains on a pad token."""
    play, first = stored(fixed(3, 1, 1, 1))
    passes, drawn = play.engine.passes, len(play.engine.drawn)
    second = play.ask()
    assert second.token_ids == first.token_ids
    assert first.finish_reason is second.finish_reason is FinishReason.STOP
    assert (play.engine.passes - passes, len(play.engine.drawn) - drawn) == (1, 0)
    assert len(second.logprobs) == len(second.levels) == len(second.behaviour_logprobs) == len(second.token_ids)
    assert play.stats.whole == 1


def test_a_turn_that_is_cut_at_its_first_token_is_sampled_anew() -> None:
    """SPEC-RL's code crashes if every row is cut at 0."""
    play, _ = stored(fixed(0, 1, 0, 0), then=fixed(1, 0, 3, 3))
    turn = play.ask()
    assert 1 not in turn.token_ids
    assert turn.draft.accepted == play.stats.reused == 0
    assert turn.levels[0] == "C"
    assert set(turn.levels[1:]) <= {"A"}


@pytest.mark.parametrize(("before", "asked", "levels"), [(6, 3, "CCC"), (3, 6, "CCCAAA")])
def test_a_turn_is_as_long_as_it_is_asked_for_now(before: int, asked: int, levels: str) -> None:
    play, first = stored(LONG, max_tokens=before)
    turn = play.ask(max_tokens=asked)
    assert turn.token_ids[:3] == first.token_ids[:3]
    assert (len(turn.token_ids), turn.levels) == (asked, levels)
    assert turn.finish_reason is FinishReason.LENGTH


def test_a_token_that_ends_turns_now_ends_the_stored_one() -> None:
    play, first = stored(LONG)
    stop = first.token_ids[1]
    turn = play.ask(stop_token_ids=(stop,))
    assert turn.token_ids == first.token_ids[: first.token_ids.index(stop) + 1]
    assert turn.finish_reason is FinishReason.STOP


def test_a_stored_turn_that_filled_the_context_is_not_continued() -> None:
    play = Reused(LONG)
    play.engine.context = 5
    first = play.ask((7, 7))
    assert len(first.token_ids) == 3
    play.update()
    turn = play.ask((7, 7))
    assert turn.token_ids == first.token_ids
    assert turn.finish_reason is FinishReason.LENGTH
    play = Reused(fixed(1, 0, 0, 0), max_context=5)
    play.engine.context = 5
    play.ask((7, 7, 7, 7))
    play.update(LONG)
    turn = play.ask((7, 7, 7, 7))
    assert len(turn.token_ids) == 1
    assert STOP not in turn.token_ids
    assert turn.finish_reason is FinishReason.LENGTH


def test_the_top_tokens_are_given_to_those_who_asked() -> None:
    play, first = stored(random_policy(1, 4), then=random_policy(2, 4))
    top = play.ask(top_logprobs=2).top
    assert first.top is None
    assert top.ids.shape[1] == 2


# Noise, replay and levels.


def test_coins_and_noise_are_new_in_every_step_though_the_callers_seeds_are_not(monkeypatch):
    """In SPEC-RL's code they repeat in every step."""
    coins: list[int] = []
    verify = pipeline.verify

    async def spy(*args: Any, **kwargs: Any) -> Verification:
        coins.append(args[-2].seed)
        return await verify(*args, **kwargs)

    monkeypatch.setattr(pipeline, "verify", spy)
    play = Reused(random_policy(1, 4))
    for epoch in range(6):
        play.ask(seed=5, stop_token_ids=())
        play.update(random_policy(epoch + 2, 4))
    noise = [sampling.seed for _, sampling in play.engine.drawn]
    assert len(set(coins)) == len(coins) == 5
    assert len(set(noise)) == len(noise) > 3


async def test_replay_is_plain_decoding_with_the_stored_seed_in_fewer_passes() -> None:
    old, other = random_policy(1, 4), random_policy(2, 4)

    def moved(context: tuple[int, ...]) -> Any:
        return 0.9 * old(context) + 0.1 * other(context)

    play, how = Reused(old, REPLAY), replace(TURN, max_tokens=30, stop_token_ids=())
    await play.reuse.generate(TurnRequest((9,), how))
    play.update(moved)
    passes = play.engine.passes
    turn = await play.reuse.generate(TurnRequest((9,), replace(how, seed=77)))
    assert turn.token_ids == (await TabledEngine(moved).generate(TurnRequest((9,), how))).token_ids
    assert play.engine.passes - passes < 30
    assert turn.levels == "C" * 30


def test_a_replayed_turn_replays_again_and_never_becomes_better_than_it_is() -> None:
    play = Reused(random_policy(1, 4), REPLAY)
    play.ask()
    play.update(random_policy(2, 4), trained=True)
    play.ask()
    play.update(random_policy(3, 4), trained=False)
    assert set(play.ask().levels) == {"C"}
    assert play.stats.drafted_turns == 2


def test_drafts_of_a_replayed_turn_are_no_test_of_chance() -> None:
    """The draft store has seen the tokens that the same noise sampled before."""
    play = Reused(random_policy(1, 4), REPLAY)
    tested = {"tested": 3, "matched": 3, "expected": 1.0, "variance": 0.5}
    play.engine.edit = lambda turn: replace(turn, draft=replace(turn.draft, **tested))  # type: ignore[arg-type]
    assert play.ask().draft.tested == 3
    play.update()
    draft = play.ask().draft
    assert (draft.tested, draft.matched, draft.expected, draft.variance) == (0, 0, 0.0, 0.0)
    assert draft.entropy > 0


def test_fresh_turns_are_level_a_and_those_of_the_last_step_c() -> None:
    play = Reused(random_policy(1, 4))
    assert set(play.ask((2,)).levels) <= {"A"}
    play.update()
    assert play.ask((2,)).levels[0] == "C"
