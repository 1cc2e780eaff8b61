"""Rows are looked ahead for together: a draft does not depend on which rows stand beside it."""

from __future__ import annotations

import numpy as np
import pytest

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.look_ahead import TOGETHER


def state(index: int) -> DialogueState:
    return DialogueState.from_tokens([index], task=f"task {index % 3}", env="e")


@pytest.mark.parametrize("rows", [1, TOGETHER - 1, TOGETHER, TOGETHER + 1, 3 * TOGETHER + 5])
def test_a_row_is_drafted_for_as_it_would_be_alone(rows: int) -> None:
    forest, rng = SpecForest(ForestConfig(threads=1)), np.random.default_rng(rows)
    for _ in range(200):
        forest.insert(state(int(rng.integers(0, 9))), rng.integers(0, 4, 40).tolist())
    handles = forest.begin([state(row % 9) for row in range(rows)])
    forest.commit(handles, [rng.integers(0, 4, row % 7).tolist() for row in range(rows)])  # of no token, too
    together = forest.draft(handles, max_nodes=24, room=[(row + 1) % 5 for row in range(rows)])
    assert len(together.tokens) >= 4 * rows
    for row, handle in enumerate(handles):
        alone = forest.draft([handle], max_nodes=24, room=[(row + 1) % 5])
        mine = slice(*together.offsets[row : row + 2].tolist())
        assert alone.tokens.tolist() == together.tokens[mine].tolist()
        assert alone.parents.tolist() == together.parents[mine].tolist()
        assert alone.probabilities.tolist() == together.probabilities[mine].tolist()
