from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turntree.spec_tree.ledger import Ledger, StoredTurn
from turntree.spec_tree.ledger_arrays import fill_ledger, ledger_arrays

KEYS = [(1 << 63, 1.0, -1), (5, 0.5, 3)]


def turn(length: int, *, width: int = 2, seed: int | None = 7) -> StoredTurn:
    rng = np.random.default_rng([length, width])
    return StoredTurn(
        tokens=rng.integers(0, 99, length, dtype=np.int32),
        logprobs=rng.normal(size=length).astype(np.float32),
        top_ids=rng.integers(0, 99, (length, width), dtype=np.int32),
        top_logprobs=rng.normal(size=(length, width)).astype(np.float32),
        seed=seed,
        version=length,
        room=length + 2,
        stopped=length % 2 == 0,
    )


def restored(ledger: Ledger, *, max_tokens: int | None = None) -> Ledger:
    again = Ledger(max_tokens=max_tokens or ledger.max_tokens)
    again.add("left over", turn(3), rank=1)
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
        ledger.add(KEYS[key], turn(length, width=length % 3, seed=seed), rank=rank, emitted=emitted)
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


def test_a_turn_that_was_used_stays_used():
    ledger = Ledger(max_tokens=100)
    for rank in range(2):
        ledger.add(KEYS[0], turn(4), rank=rank)
    ledger.close_step()
    assert ledger.take(KEYS[0]) is not None
    again = restored(ledger)
    assert again.take(KEYS[0]) is not None
    assert again.take(KEYS[0]) is None


def test_less_room_keeps_the_newest():
    ledger = Ledger(max_tokens=100)
    for step in range(3):
        ledger.add(KEYS[0], turn(4), rank=step)
        ledger.close_step()
    again = restored(ledger, max_tokens=6)
    assert again.stats().turns == 1
    assert said(again.take(KEYS[0])) == said(ledger.take(KEYS[0]))
