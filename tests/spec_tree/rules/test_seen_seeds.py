import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.spec_tree.rules.seen_seeds import SeenSeeds

SEEDS = st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=60)


@given(SEEDS)
def test_a_seed_that_was_added_is_always_found(seeds):
    seen = SeenSeeds(bits=256)
    seen.add(seeds)
    assert all(seed in seen for seed in seeds)


def test_few_others_are_found_by_mistake_and_a_set_of_another_ones_table_finds_the_same():
    assert not any(seed in SeenSeeds(bits=64) for seed in range(100))
    seen = SeenSeeds(bits=1 << 14)
    seen.add(range(1000))
    assert 0 < (sum(seed in seen for seed in range(1000, 5000)) / 4000) < 0.02
    seen = SeenSeeds(bits=512)
    seen.add([5, 1 << 63])
    again = SeenSeeds.of_table(seen.table.copy())
    seen.add([6])
    assert 5 in again
    assert 6 not in again
    assert again.table.dtype == np.uint8


@pytest.mark.parametrize("bits", [0, 7, 12])
def test_a_table_consists_of_whole_bytes(bits):
    with pytest.raises(ValueError, match=f"multiple of 8, got {bits}"):
        SeenSeeds(bits=bits)
