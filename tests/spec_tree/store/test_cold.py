from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.spec_tree.store.cold import ColdTurns, pack, packed_tokens, unpack


@given(st.lists(st.one_of(st.integers(0, 2**31 - 1), st.integers(0, 2**16), st.integers(0, 2**24)), max_size=20))
def test_packing_gives_back_the_same(tokens: list[int]) -> None:
    packed = pack(np.array(tokens, np.int32))
    assert unpack(packed).tolist() == tokens
    assert unpack(packed).dtype == np.int32
    assert packed_tokens(packed) == len(tokens)


@pytest.mark.parametrize(("greatest", "width"), [(0, 2), (2**16 - 1, 2), (2**16, 3), (2**24 - 1, 3), (2**24, 4)])
def test_a_turn_takes_as_few_bytes_as_its_greatest_token_needs(greatest: int, width: int) -> None:
    assert len(pack(np.array([1, greatest, 2], np.int32))) == 1 + 3 * width


@given(
    st.integers(0, 30), st.lists(st.tuples(st.sampled_from("aaatd"), st.integers(0, 4), st.integers(1, 9)), max_size=40)
)
def test_the_least_recently_touched_states_go_first_oldest_turns_first(most: int, calls: list) -> None:
    cold, plain = ColdTurns(most), OrderedDict[int, list[list[int]]]()
    dropped = 0

    def drop_oldest(state: int) -> None:
        plain[state].pop(0)
        if not plain[state]:
            del plain[state]

    for kind, state, size in calls:
        if kind == "a":
            turn = [state, *range(size - 1)]
            cold.add(state, np.arange(1, 5, dtype=np.uint64), np.array(turn, np.int32))
            plain.setdefault(state, []).append(turn)
            plain.move_to_end(state)
            while sum(len(turn) for turns in plain.values() for turn in turns) > most:
                drop_oldest(next(iter(plain)))
                dropped += 1
        elif kind == "t":
            assert [turn.tolist() for turn in cold.take(state)] == plain.pop(state, [])
        elif state in plain:
            cold.drop_oldest(state)
            drop_oldest(state)
        assert list(cold.states()) == list(plain)
        for known, turns in plain.items():
            assert known in cold
            assert [turn.tolist() for turn in cold.look(known)] == turns
            assert cold.count(known) == len(turns)
        assert cold.tokens == sum(len(turn) for turns in plain.values() for turn in turns) <= most
        assert cold.bytes == sum(1 + 2 * len(turn) for turns in plain.values() for turn in turns)
        assert len(cold) == sum(map(len, plain.values()))
        assert cold.dropped == dropped
