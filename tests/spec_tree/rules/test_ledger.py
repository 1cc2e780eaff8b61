from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import LINEAR, growth
from stored_turns import stored_turn

from turntree.spec_tree.rules.ledger import Ledger, StoredTurn, TurnUnavailable
from turntree.spec_tree.rules.ledger_arrays import array_keys, fill_ledger, ledger_arrays
from turntree.spec_tree.rules.level import Level, level_codes, worst_level


def turn(*tokens: int, token_limit: int = 8, top: int = 2, seed: int | None = 1, version: int = 0) -> StoredTurn:
    """Return a turn whose log-probabilities are all different."""
    count = len(tokens)
    tops = np.arange(count * top).reshape(count, top)
    fields = {"seed": seed, "version": version, "token_limit": token_limit, "stopped": count % 2 == 0}
    return stored_turn(tokens, -np.arange(1, count + 1), tops, -tops, **fields)


def test_codes_of_levels_leave_zero_for_tokens_not_sampled_and_the_worst_is_the_weakest_claim() -> None:
    assert level_codes("ABCD").tolist() == [1, 2, 3, 4]
    assert level_codes("").shape == (0,)
    assert level_codes("A").dtype == "int8"
    with pytest.raises(ValueError, match="one of ABCD"):
        level_codes("AXB")
    assert [worst_level(levels) for levels in ("AABA", "DAC", "")] == [Level.B, Level.D, Level.A]


def ledger_of(count: int, key: Hashable = "s") -> Ledger:
    """Return a ledger with ``count`` turns of a closed step."""
    ledger = Ledger(max_tokens=10_000)
    for rank in range(count):
        ledger.add(key, turn(1), rank=rank)
    ledger.close_step()
    return ledger


def test_a_turn_is_handed_out_once_its_step_is_over_and_the_second_use_raises() -> None:
    ledger = Ledger(max_tokens=100)
    number, other = ledger.add("s", turn(1, 2), rank=0), ledger.add("t", turn(3), rank=1)
    assert ledger.take("s") is None
    with pytest.raises(TurnUnavailable, match="running step"):
        ledger.use(number)
    ledger.close_step()
    assert ledger.use(number).turn.tokens.tolist() == [1, 2]
    with pytest.raises(TurnUnavailable, match="can be used once"):
        ledger.use(number)
    assert ledger.take("s") is None
    assert ledger.take("t").number == other
    with pytest.raises(TurnUnavailable, match="there is no turn 3"):
        ledger.use(3)


def test_only_the_exact_key_finds_a_turn_and_used_or_too_large_ones_are_forgotten() -> None:
    ledger = ledger_of(1, key=("s", 1.0))
    assert ledger.take(("s", 0.7)) is None
    assert ledger.take(("s", 1.0)) is not None
    ledger = Ledger(max_tokens=4)
    ledger.add("s", turn(1, token_limit=8), rank=0)
    assert ledger.stats().turns == 0
    ledger = ledger_of(100)
    for _ in range(99):
        ledger.take("s")
    assert ledger.queued <= 2


def test_trained_turns_give_level_c_and_others_level_b() -> None:
    ledger = Ledger(max_tokens=100)
    ledger.add("emitted", turn(1), rank=0)
    ledger.add("ahead", turn(1), emitted=False, rank=0)
    ledger.close_step(trained=True)
    ledger.add("untrained", turn(1), rank=0)
    ledger.close_step(trained=False)
    assert [ledger.take(key).level for key in ("emitted", "ahead", "untrained")] == [Level.C, Level.B, Level.B]


def test_the_turns_that_wait_are_those_of_the_latest_closed_step_among_which_one_is_picked() -> None:
    ledger = Ledger(max_tokens=100)
    ledger.add("s", turn(1), rank=0)
    assert ledger.waiting("s") == [], "its step is still running"
    ledger.close_step()
    ledger.add("s", turn(3, 3), rank=1)
    ledger.add("s", turn(2), rank=0)
    ledger.close_step()
    for left, pick, taken in (([2, 3], 5, 3), ([2], 0, 2), ([1], 0, 1)):
        assert [waiting.tokens[0] for waiting in ledger.waiting("s")] == left
        assert ledger.take("s", pick=pick).turn.tokens[0] == taken
    assert ledger.waiting("s") == []


def test_turns_of_the_oldest_step_are_dropped_from_a_full_ledger_the_lowest_rank_first() -> None:
    ledger = Ledger(max_tokens=16)
    ledger.add("b", turn(2), rank=2)
    first = ledger.add("a", turn(1), rank=1)
    ledger.close_step()
    ledger.add("c", turn(3), rank=0)
    ledger.close_step()
    stats = ledger.stats()
    assert (stats.turns, stats.tokens, stats.charged, stats.dropped) == (2, 2, 16, 1)
    assert ledger.take("a") is None
    with pytest.raises(TurnUnavailable):
        ledger.use(first)
    assert ledger.take("b") is not None


def test_what_comes_late_is_not_kept_below_what_was_dropped() -> None:
    # Otherwise a step would keep more of its late turns, the long ones.
    saved, (a, b, c, d) = Ledger(max_tokens=10), [(number, 1.0, number) for number in range(4)]
    saved.add(a, turn(1, token_limit=6), rank=5)
    saved.add(b, turn(1, token_limit=6), rank=9)
    for ledger in (restored(saved), saved):
        ledger.add(c, turn(1, token_limit=3), rank=4)
        assert ledger.stats().turns == 1
        ledger.add(d, turn(1, token_limit=3), rank=6)
        ledger.close_step()
        assert [ledger.take(key) is not None for key in (a, b, c, d)] == [False, True, False, True]
        assert ledger.stats().dropped == 2


def survivors(charge_by_length: bool = False, rank_by_arrival: bool = False) -> dict[int, float]:
    """Return the fraction of turns of 1 and of 3 tokens that are kept, over all lengths and ranks of three turns.

    Short turns arrive first.
    """
    kept, seen = {1: 0, 3: 0}, {1: 0, 3: 0}
    for lengths, ranks in product(product((1, 3), repeat=3), permutations(range(3))):
        ledger = Ledger(max_tokens=6)
        for arrival, position in enumerate(sorted(range(3), key=lambda position: lengths[position])):
            stored = turn(*range(lengths[position]), token_limit=lengths[position] if charge_by_length else 3)
            ledger.add(position, stored, rank=arrival if rank_by_arrival else ranks[position])
        ledger.close_step()
        for position, length in enumerate(lengths):
            seen[length] += 1
            kept[length] += ledger.take(position) is not None
    return {length: kept[length] / seen[length] for length in kept}


def test_whether_a_turn_is_kept_does_not_depend_on_its_length() -> None:
    fair = survivors()
    assert fair[1] == fair[3]
    for fault in ("charge_by_length", "rank_by_arrival"):
        unfair = survivors(**{fault: True})
        assert abs(unfair[1] - unfair[3]) > 0.1, f"the control {fault} must prefer some length"


def test_a_repeated_draw_is_stored_once_even_if_it_was_dropped() -> None:
    ledger = Ledger(max_tokens=8)
    first = ledger.add("s", turn(1), rank=3)
    assert ledger.add("s", turn(2), rank=3) == first
    ledger.add("t", turn(3), rank=9)
    ledger.add("s", turn(1), rank=3)
    ledger.close_step()
    assert ledger.take("s") is None
    assert ledger.take("t") is not None
    ledger.add("s", turn(1), rank=3)
    assert ledger.stats().turns == 1, "a new step is a new draw"


def test_turns_of_one_state_cost_the_same_however_many_there_are() -> None:
    one = turn(1)

    def stored_and_taken(count: int) -> None:
        ledger = Ledger(max_tokens=8 * count)
        for number in range(count):
            ledger.add("s", one, rank=number * 7919 % count)
        ledger.close_step()
        for number in range(count):
            ledger.take("s", pick=number * 31)

    assert growth(stored_and_taken, 8_000) < LINEAR


def test_threads_never_get_the_same_turn() -> None:
    ledger = ledger_of(500)
    with ThreadPoolExecutor(8) as pool:
        drafted_turns = list(pool.map(lambda pick: ledger.take("s", pick=pick), range(600)))
    assert sorted([replayed.number for replayed in drafted_turns if replayed is not None]) == list(range(500))
    assert ledger.stats().used == 500


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_limit": 1}, "1 to token_limit=1 tokens, got 2"),
        ({"logprobs": np.zeros(1, np.float32)}, "expected 2 log-probabilities"),
        ({"top_ids": np.zeros((1, 2), np.int32)}, r"expected top tokens of shape \(2, k\)"),
    ],
)
def test_a_malformed_turn_or_a_ledger_of_no_tokens_is_refused(fields: dict[str, object], message: str) -> None:
    good = {name: getattr(turn(1, 2), name) for name in StoredTurn.__slots__}
    with pytest.raises(ValueError, match=message):
        StoredTurn(**{**good, **fields})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Ledger(max_tokens=0)


KEYS = [(1 << 63, 1.0, -1), (5, 0.5, 3)]


def restored(ledger: Ledger, *, max_tokens: int | None = None) -> Ledger:
    again = Ledger(max_tokens=max_tokens or ledger.max_tokens)
    again.add("left over", turn(1, 2, 3), rank=1)
    fill_ledger(again, ledger_arrays(ledger))
    return again


def said(replayed) -> tuple | None:
    if replayed is None:
        return None
    stored = replayed.turn
    return (
        *(replayed.number, replayed.level, stored.seed, stored.version, stored.token_limit, stored.stopped),
        *(array.tolist() for array in (stored.tokens, stored.logprobs, stored.top_ids, stored.top_logprobs)),
    )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(1, 6), st.integers(0, 1 << 62), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("close"), st.booleans()),
    ),
    max_size=20,
)


def act(ledger: Ledger, action: tuple) -> tuple | None:
    name, *values = action
    if name == "add":
        key, length, rank, emitted = values
        seed = None if length == 3 else rank
        stored = turn(*range(length), token_limit=length + 2, top=length % 3, seed=seed, version=length)
        ledger.add(KEYS[key], stored, rank=rank, emitted=emitted)
    elif name == "take":
        return said(ledger.take(KEYS[values[0]], pick=values[1]))
    else:
        ledger.close_step(trained=values[0])
    return None


@given(ACTIONS, ACTIONS)
def test_a_restored_ledger_continues_as_the_saved_one(before, after):
    ledger = Ledger(max_tokens=25)
    for action in before:
        act(ledger, action)
    again = restored(ledger)
    assert again.stats() == ledger.stats()
    assert again.step == ledger.step
    assert [act(again, action) for action in after] == [act(ledger, action) for action in after]
    assert again.stats() == ledger.stats()


def test_a_smaller_ledger_keeps_the_newest():
    ledger = Ledger(max_tokens=100)
    for step in range(3):
        ledger.add(KEYS[0], turn(step, 2, 3, 4, token_limit=6), rank=step)
        ledger.close_step()
    again = restored(ledger, max_tokens=6)
    assert again.stats().turns == 1
    assert said(again.take(KEYS[0])) == said(ledger.take(KEYS[0]))


@pytest.mark.parametrize(
    "text", [b"[" * 5000, b"[[1],[2],[3]]", b"[[1," + b"1," * 90 + b"1]]", b"[[" + b"1" * 5000 + b"]]"]
)
def test_keys_are_counted_before_they_are_parsed(text: bytes) -> None:
    with pytest.raises(ValueError, match="expected 1 keys"):
        array_keys(np.frombuffer(text, np.uint8), 1)
