import numpy as np
import pytest
from numpy.typing import NDArray

from turntree.spec_tree import DialogueState, ForestConfig
from turntree.spec_tree.kernels.layout import START, LiveTurns, live_turns
from turntree.spec_tree.store.context_ring import ContextRing
from turntree.spec_tree.store.live_table import LiveTable

STATE = DialogueState.from_tokens([1, 2])


def test_a_row_begins_as_if_nobody_had_used_it() -> None:
    table = LiveTable(ForestConfig())
    fresh, (row,) = table.open([STATE])
    for column in table.turns:
        column[row] = 3
    table.turns.context[row] = 5, 9
    table.close(fresh)
    _, (row,) = table.open([STATE])
    live = table.turns
    assert (live.last[row], live.tail[row, 0], live.length[row], live.turn[row]) == (0, START, 0, 0)
    assert live.context[row].tolist() == [0, 0]
    assert (live.anchor_count[row], live.candidate_count[row], live.node_count[row], live.drafted[row]) == (0, 0, 0, 0)
    assert live.keys[row].tolist() == list(STATE.backoff_states())


def held(ring: ContextRing, turns: LiveTurns, row: int) -> list[int]:
    start, stop = turns.context[row].tolist()
    tokens: list[int] = ring.log.tokens[start:stop].tolist()
    return tokens


def add(ring: ContextRing, turns: LiveTurns, contexts: dict[int, NDArray[np.int32]]) -> None:
    offsets = np.cumsum([0, *map(len, contexts.values())])
    ring.add(np.array([*contexts]), np.concatenate([*contexts.values()]), offsets, turns)


@pytest.mark.parametrize("together", [1, 5])
@pytest.mark.parametrize("most", [1024, 40_000])
def test_what_a_row_has_is_what_it_was_asked_or_nothing(most: int, together: int) -> None:
    ring, turns = ContextRing(most, window=300), live_turns(16)
    rng = np.random.default_rng(0)
    asked: dict[int, list[int]] = {}
    kept = 0
    for _ in range(1500):
        rows = rng.permutation(16)[:together].tolist()
        if rng.random() < 0.4:
            for row in rows:
                asked.pop(row, None)
                turns.context[row] = 0  # as when the turn ends
        else:
            new = {row: rng.integers(0, 2**31, int(rng.integers(0, 500))).astype(np.int32) for row in rows}
            add(ring, turns, new)
            asked |= {row: tokens[-300:].tolist() if len(tokens) > 1 else [] for row, tokens in new.items()}
            assert held(ring, turns, rows[-1]) == asked[rows[-1]]
        for row, tokens in asked.items():
            mine = held(ring, turns, row)
            assert mine in ([], tokens)
            kept += bool(mine)
        assert len(ring.log.tokens) <= most
    assert kept > 1500  # some were held
    if most > 16 * 300:
        assert all(held(ring, turns, row) == tokens for row, tokens in asked.items())


@pytest.mark.parametrize("window", [0, 1, 2**20])
def test_any_window_is_allowed(window: int) -> None:
    ring, turns = ContextRing(1024, window=window), live_turns(2)
    for _ in range(10):
        add(ring, turns, {0: np.arange(5000, dtype=np.int32)})
        assert len(held(ring, turns, 0)) == (512 if window > 1 else 0)
