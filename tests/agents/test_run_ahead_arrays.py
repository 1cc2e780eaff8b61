from __future__ import annotations

from turntree.agents.run_ahead_arrays import stock_arrays, stock_of_arrays
from turntree.agents.run_ahead_stock import RunAheadStock

KEYS = [(1 << 63, 1.0, -1), (5, 0.5, 3)]


def full() -> RunAheadStock:
    stock = RunAheadStock(max_tokens=100)
    stock.show(3)
    stock.close_step(1)
    stock.put(KEYS[0], 1, (5, 6), step=3)
    stock.put(KEYS[1], 2, (7,), step=4)
    stock.put(KEYS[1], 3, (8, 9), step=4)
    stock.use(9, 4)
    stock.show(2)
    return stock


def test_a_restored_stock_hands_out_and_refuses_what_the_saved_one_would():
    stock = stock_of_arrays(stock_arrays(full()), max_tokens=100)
    assert list(stock.turns()) == list(full().turns())
    assert [stock.used(seed) for seed in (1, 9, 4)] == [True, True, False]
    made = stock.take(KEYS[0], 1)
    assert made is not None
    assert made.tokens == (5, 6)
    assert stock.take(KEYS[1], 3) is None
    assert stock.counts.refused == 1
    assert stock.holds(KEYS[1], 2)
    stock.close_step(2)
    assert not stock.holds(KEYS[1], 2), "what the running step showed is trained on when it closes"


def test_less_room_keeps_the_newest_turns():
    stock = stock_of_arrays(stock_arrays(full()), max_tokens=3)
    assert [seed for _, seed, _ in stock.turns()] == [2, 3]
