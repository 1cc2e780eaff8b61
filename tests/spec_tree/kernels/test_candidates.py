import numpy as np
import pytest
from forest_checks import Said, paths, rows_of

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.kernels.prefetch import PREFETCHED_ROWS


def drafted_after(said: list[int], turns: list[list[int]], rows: int = 1) -> list[Said]:
    """Return the paths drafted after ``said`` in a state that knows ``turns``, by the first of ``rows`` turns.

    Eight other turns of the environment say 3 and then something different each, so that 3 has no remembered follower.
    """
    forest, state = SpecForest(), DialogueState.from_tokens([1], task="asked", env="e")
    for turn in turns:
        forest.insert(state, turn)
    for i in range(8):
        forest.insert(DialogueState.from_tokens([2, i], task="other", env="e"), [3, 20 + i])
    handles = forest.begin([state] * rows)
    forest.commit(handles[:1], [said])
    return paths(rows_of(forest.draft(handles, max_nodes=64, max_depths=[8] * rows))[0])


def test_below_the_root_what_the_state_says_after_the_last_token_of_the_path_is_drafted() -> None:
    # No candidate of the root leads there: before the 3 the state's two turns have nothing in common.
    assert (2, 3, 5, 6) in drafted_after([1], [[1, 2, 3, 4], [9, 3, 5, 6]])
    assert (2, 3, 5) not in drafted_after([1], [[1, 2, 3, 4], [9, 7, 5, 6]])


def test_a_large_batch_is_not_looked_through_again() -> None:
    # The lookup would delay the whole batch.
    turns = [[1, 2, 3, 4], [9, 3, 5, 6]]
    assert (2, 3, 5, 6) in drafted_after([1], turns, rows=64)
    assert (2, 3, 5, 6) not in drafted_after([1], turns, rows=65)


def state(index: int) -> DialogueState:
    return DialogueState.from_tokens([index], task=f"task {index % 3}", env="e")


@pytest.mark.parametrize(
    "rows", [1, PREFETCHED_ROWS - 1, PREFETCHED_ROWS, PREFETCHED_ROWS + 1, 3 * PREFETCHED_ROWS + 5]
)
def test_a_row_is_drafted_for_as_it_would_be_alone(rows: int) -> None:
    forest, rng = SpecForest(ForestConfig(threads=1)), np.random.default_rng(rows)
    for _ in range(200):
        forest.insert(state(int(rng.integers(0, 9))), rng.integers(0, 4, 40).tolist())
    handles = forest.begin([state(row % 9) for row in range(rows)])
    forest.commit(handles, [rng.integers(0, 4, row % 7).tolist() for row in range(rows)])  # of no token, too
    together = forest.draft(handles, max_nodes=24, max_depths=[(row + 1) % 5 for row in range(rows)])
    assert len(together.tokens) >= 4 * rows
    for row, handle in enumerate(handles):
        alone = forest.draft([handle], max_nodes=24, max_depths=[(row + 1) % 5])
        mine = slice(*together.offsets[row : row + 2].tolist())
        assert alone.tokens.tolist() == together.tokens[mine].tolist()
        assert alone.parents.tolist() == together.parents[mine].tolist()
        assert alone.probabilities.tolist() == together.probabilities[mine].tolist()
