from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stored_turns import stored_turn

from turntree.spec_tree.ledger import Ledger
from turntree.spec_tree.ledger_arrays import fill_ledger, ledger_arrays

KEYS = [(1 << 63, 1.0, -1), (5, 0.5, 3)]


def restored(ledger: Ledger, *, max_tokens: int | None = None) -> Ledger:
    again = Ledger(max_tokens=max_tokens or ledger.max_tokens)
    again.add("left over", stored_turn(1, 2, 3), rank=1)
    fill_ledger(again, ledger_arrays(ledger))
    return again


def said(ticket) -> tuple | None:
    if ticket is None:
        return None
    stored = ticket.turn
    return (
        *(ticket.number, ticket.level, stored.seed, stored.version, stored.room, stored.stopped),
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
        turn = stored_turn(*range(length), room=length + 2, top=length % 3, seed=seed, version=length)
        ledger.add(KEYS[key], turn, rank=rank, emitted=emitted)
    elif name == "take":
        return said(ledger.take(KEYS[values[0]], pick=values[1]))
    else:
        ledger.close_step(trained=values[0])
    return None


@given(ACTIONS, ACTIONS)
def test_a_restored_ledger_goes_on_as_the_saved_one(before, after):
    ledger = Ledger(max_tokens=25)
    for action in before:
        act(ledger, action)
    again = restored(ledger)
    assert again.stats() == ledger.stats()
    assert again.step == ledger.step
    assert [act(again, action) for action in after] == [act(ledger, action) for action in after]
    assert again.stats() == ledger.stats()


def test_less_room_keeps_the_newest():
    ledger = Ledger(max_tokens=100)
    for step in range(3):
        ledger.add(KEYS[0], stored_turn(step, 2, 3, 4, room=6), rank=step)
        ledger.close_step()
    again = restored(ledger, max_tokens=6)
    assert again.stats().turns == 1
    assert said(again.take(KEYS[0])) == said(ledger.take(KEYS[0]))


def test_what_comes_late_stays_below_what_was_dropped_before_the_snapshot():
    ledger = Ledger(max_tokens=7)
    for rank in (5, 9):
        ledger.add(KEYS[0], stored_turn(1, 2, 3, 4, room=6), rank=rank)
    again = restored(ledger, max_tokens=100)
    for rank in (4, 6):
        again.add(KEYS[1], stored_turn(1, room=3), rank=rank)
    assert (again.stats().turns, again.stats().dropped) == (2, 2)
