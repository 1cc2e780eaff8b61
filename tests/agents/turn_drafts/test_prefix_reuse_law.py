"""Reuse samples from the current policy, and each fault of SPEC-RL's released code is noticed."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from policy_law import chi_square
from reused_turns import EXACT, LENIENT, Reused, after_prompt, fixed
from tabled_engine import Law, random_policy

from turntree.agents.engines.monitors import ALARM, Monitors
from turntree.agents.engines.protocol import Completion
from turntree.agents.turn_drafts import turn_verification
from turntree.agents.turn_drafts.acceptance import KnownDistribution, Redraw
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.spec_tree.rules.ledger import Ledger, ReplayedTurn
from turntree.spec_tree.rules.verify import behaviour


def fit(turns: list[Completion], policy: Law, vocabulary: int) -> float:
    law = {(a, b): policy(())[a] * policy((a,))[b] for a in range(vocabulary) for b in range(vocabulary)}
    return chi_square(Counter(turn.token_ids for turn in turns), law)


def replayed(config: ReuseConfig, vocabulary: int, count: int = 600) -> tuple[list[Completion], Law, Reused]:
    old, new = random_policy(1, vocabulary), random_policy(2, vocabulary)
    play = Reused(after_prompt(old), config, vocabulary)
    play.many(count)
    play.update(after_prompt(new))
    return play.many(count), new, play


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The rule of SPEC-RL's code, at lenience 1: the rejected position is drawn from the policy itself."""

    def drawn_from_p(law: KnownDistribution, turn: Any, position: int, coin: float, lenience: float) -> Redraw:
        p = law.p.cumsum()
        return Redraw(int(law.ids[np.searchsorted(p, coin * p[-1])]))

    return lambda: monkeypatch.setattr(turn_verification, "redraw_known", drawn_from_p)


@pytest.mark.parametrize("top_k", [2, *(pytest.param(k, marks=pytest.mark.release) for k in (1, 4))])
def test_exact_reuse_says_what_the_policy_of_now_says(top_k: int) -> None:
    turns, policy, play = replayed(ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING, top_k=top_k), 4)
    assert play.stats.reused > 100
    assert fit(turns, policy, 4) > 1e-3


def test_rejected_positions_drawn_from_the_policy_itself_are_seen(released: Callable[[], None]) -> None:
    """Control of the distribution test and of the monitors, which raise no alarm in exact reuse."""
    exact = scores(replayed(EXACT, 4)[0])
    assert set(exact) == {"acceptance", "entropy"}
    assert all(abs(score) < ALARM for score in exact.values())
    released()
    turns, policy, _ = replayed(EXACT, 4)
    assert fit(turns, policy, 4) < 1e-6
    assert scores(turns)["acceptance"] < -ALARM


def scores(turns: list[Completion]) -> dict[str, float]:
    monitors = Monitors()
    monitors.add(turns)
    return {name.split("_")[-2]: score for name, score in monitors.scores().items()}


@pytest.mark.parametrize(("wider", "passes"), [(16, 1), (2, 2)])
def test_tokens_beyond_the_recorded_ones_are_drawn_from_more_of_the_law(wider, passes, monkeypatch):
    monkeypatch.setattr(turn_verification, "_WIDENING", wider)
    turns, policy, play = replayed(ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING, top_k=3), 12)
    assert play.stats.wider > 25
    assert {turn.draft.verify_steps for turn in turns} >= set(range(1, 2 + passes))
    assert fit(turns, policy, 12) > 1e-3


def test_lenient_reuse_is_biased_and_marked_as_such() -> None:
    turns, policy, _ = replayed(ReuseConfig(mode=ReuseMode.SPEC_RL, bias=1.0), 4)
    assert fit(turns, policy, 4) < 1e-6
    assert all(set(turn.levels) <= {"D", "A"} and turn.levels[0] == "D" for turn in turns)


def test_the_recorded_behaviour_is_the_law_that_drew_the_token() -> None:
    old, new = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1])
    play = Reused(fixed(*old), LENIENT)
    play.many(300, max_tokens=1)
    play.update(fixed(*new))
    law = behaviour(new, old, LENIENT.lenience)
    turns = play.many(300, max_tokens=1)
    for turn in turns:
        assert turn.behaviour_logprobs[0] == pytest.approx(np.log(law[turn.token_ids[0]]), abs=1e-5)
        assert turn.logprobs[0] == pytest.approx(np.log(new[turn.token_ids[0]]), abs=1e-5)
    assert chi_square(Counter(turn.token_ids for turn in turns), {(n,): p for n, p in enumerate(law)}) > 1e-3


def test_the_exact_behaviour_is_the_policy() -> None:
    turns, policy, _ = replayed(ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING, top_k=2), 5, count=100)
    for turn in turns:
        own = [float(np.log(policy(turn.token_ids[:position])[token])) for position, token in enumerate(turn.token_ids)]
        assert turn.behaviour_logprobs == pytest.approx(own, abs=1e-5)
        assert turn.logprobs == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize(("before", "stay"), [((1, 2, 3, 4), False), ((3, 4, 2, 1), True)])
def test_truncated_laws_are_weighed_after_truncation_and_reported_before(before: tuple[int, ...], stay: bool) -> None:
    play = Reused(fixed(*before))
    for seed in range(20):
        play.ask((seed,), top_k=2, seed=seed, max_tokens=1)
    play.update(fixed(4, 3, 2, 1))
    for seed in range(20):
        turn = play.ask((seed,), top_k=2, seed=seed, max_tokens=1)
        assert turn.token_ids[0] in (0, 1)
        assert turn.logprobs[0] == pytest.approx(np.log([0.4, 0.3][turn.token_ids[0]]), abs=1e-5)
        assert turn.behaviour_logprobs[0] == pytest.approx(np.log([4 / 7, 3 / 7][turn.token_ids[0]]), abs=1e-5)
    assert (play.reuse.stats.reused > 0) is stay


class Generous(Ledger):
    """Control: hands one turn out twice."""

    def __init__(self, *, max_tokens: int) -> None:
        super().__init__(max_tokens=max_tokens)
        self.given: dict[Any, ReplayedTurn] = {}

    def take(self, key: Any, *, pick: int = 0) -> ReplayedTurn | None:
        replayed = self.given.get(key) or super().take(key, pick=pick)
        return None if replayed is None else self.given.setdefault(key, replayed)


def pairs_of_siblings(ledger: type[Ledger]) -> float:
    """Chi-square p-value of two siblings at one state against two draws from the policy."""
    old, new = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    play = Reused(fixed(*old), vocabulary=3)
    play.reuse.stored.ledger = ledger(max_tokens=100_000)

    play.many(700, each=2, max_tokens=1)
    play.update(fixed(*new))
    said = [turn.token_ids[0] for turn in play.many(700, each=2, max_tokens=1)]
    law = {(a, b): new[a] * new[b] for a in range(3) for b in range(3)}
    return chi_square(Counter(zip(said[::2], said[1::2], strict=True)), law)


def test_siblings_that_begin_with_old_turns_are_independent_draws() -> None:
    assert pairs_of_siblings(Ledger) > 1e-3
    assert pairs_of_siblings(Generous) < 1e-6, "the control hands one turn out twice"


def share_of_token_one(epochs: int) -> float:
    """Frequency of token 1 after its probability fell by 20 % per epoch, from 90 % to 15 %."""
    chance = 0.9
    play = Reused(fixed(1 - chance, chance), LENIENT, 2)
    for _ in range(epochs):
        play.many(120, max_tokens=1)
        chance *= 0.8
        play.update(fixed(1 - chance, chance))
    return float(np.mean([turn.token_ids[0] for turn in play.many(120, max_tokens=1)]))


def test_stored_turns_cannot_hold_back_a_policy_that_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC-RL's code stores the new probability at each reuse, so small steps never add up."""
    assert share_of_token_one(epochs=8) < LENIENT.lenience * 0.9 * 0.8**8 + 0.15
    ours = turn_verification.behaviour_of

    def refreshed(tokens: Any, logprobs: Any, turn: Any, top: Any, lenience: float) -> Any:
        return ours(tokens, logprobs, turn, top, lenience)._replace(top=top)

    monkeypatch.setattr(turn_verification, "behaviour_of", refreshed)
    assert share_of_token_one(epochs=8) > 0.8, "the control must show the ratchet"


def test_saved_tokens_mean_the_same_everywhere() -> None:
    """SPEC-RL's code reads avg_saved_tokens with opposite meanings."""
    turns, _, play = replayed(EXACT, 4, count=50)
    assert play.stats.reused == sum(turn.draft.accepted for turn in turns)
    assert play.stats.reused == sum(sum(turn.accepted) for turn in turns)
    assert play.stats.offered == sum(turn.draft.drafted for turn in turns)
