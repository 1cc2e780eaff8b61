from __future__ import annotations

import numpy as np
import pytest
from draft_trees import draft_trees

from turntree.agents.engines.local.drafting import select, spread, with_guesses
from turntree.spec_tree import DraftBatch


def paths(draft: DraftBatch) -> list[set[tuple[int, ...]]]:
    """The paths to the nodes of each row; siblings that are alike would be lost."""
    found = []
    for b in range(draft.rows):
        own: list[tuple[int, ...]] = []
        for node in range(int(draft.offsets[b]), int(draft.offsets[b + 1])):
            parent = int(draft.parents[node])
            above = () if parent < 0 else own[parent]
            own.append((*above, int(draft.tokens[node])))
            assert draft.depths[node] == len(own[-1])
        assert len(set(own)) == len(own)
        found.append(set(own))
    return found


TREES = draft_trees([(5, -1), (6, 0), (7, -1), (8, 1), (9, 2)], [], [(1, -1), (2, 0)], last_probability=0.1)


def test_a_guess_and_a_tree_share_the_nodes_that_they_agree_on():
    both = with_guesses(TREES, [[5, 6, 4], [3], []])
    tree = paths(TREES)
    assert paths(both) == [tree[0] | {(5,), (5, 6), (5, 6, 4)}, {(3,)}, tree[2]]
    assert both.tokens[:3].tolist() == [5, 6, 4]
    assert both.parents[:3].tolist() == [-1, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_path_is_lost_or_doubled(seed):
    rng = np.random.default_rng(seed)
    guesses = [rng.integers(5, 8, size=int(rng.integers(0, 5))).tolist() for _ in range(3)]
    both = paths(with_guesses(TREES, guesses))
    prefixes = [{tuple(guess[: n + 1]) for n in range(len(guess))} for guess in guesses]
    assert both == [tree | chain for tree, chain in zip(paths(TREES), prefixes, strict=True)]


def test_rows_are_spread_and_selected():
    wide = spread(TREES, [0, 2, 3], 5)
    assert [len(p) for p in paths(wide)] == [5, 0, 0, 2, 0]
    assert paths(select(wide, np.array([0, 3]))) == [paths(TREES)[0], paths(TREES)[2]]
