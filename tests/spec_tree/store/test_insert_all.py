import numpy as np
import pytest
from forest_checks import broken

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest


def drafted(forest: SpecForest, states: list[DialogueState]) -> list[list[int]]:
    handles = forest.begin(states)
    batch = forest.draft(handles, max_nodes=16, max_depths=[16] * len(handles))
    forest.end(handles, keep=False)
    return [batch.tokens.tolist(), batch.parents.tolist(), batch.offsets.tolist()]


@pytest.mark.parametrize(
    ("count", "longest", "capacity"), [(60, 40, 100_000), (400, 30, 100_000), (400, 30, 2048), (30, 700, 2048)]
)
def test_many_turns_at_once_are_kept_like_one_by_one(count: int, longest: int, capacity: int) -> None:
    """Through quotas, a ring that wraps around, and turns too long for it."""
    rng = np.random.default_rng(0)
    states = [DialogueState.from_tokens([i % 7], task=f"task {i % 3}", env="e") for i in range(count)]
    turns = [rng.integers(0, 12, rng.integers(0, longest)).astype(np.int32) for _ in range(count)]
    config = ForestConfig(max_tokens=capacity, rollouts_per_state=16)
    together, alone = SpecForest(config), SpecForest(config)
    together.insert_all(states, turns)
    for state, turn in zip(states, turns, strict=True):
        alone.insert(state, turn.tolist())
    assert not broken(together)
    stats = together.stats()
    assert stats.rollouts + stats.evicted_rollouts == sum(len(turn) > 0 for turn in turns)
    if capacity == 100_000:  # elsewhere room is made in larger steps
        for state in states[:7]:
            assert together.tree(state).to_dict() == alone.tree(state).to_dict()
        assert stats.rollouts == alone.stats().rollouts
        if count == 60:  # turns that are let go have pushed others out of what followed a token
            assert drafted(together, states[:7]) == drafted(alone, states[:7])


def test_states_that_make_room_for_each_other_stay_one() -> None:
    """Cold turns that return evict a state that was visited just before and is visited again."""
    states = [DialogueState.from_tokens([i]) for i in range(3)]
    rng = np.random.default_rng(1)
    forest = SpecForest(ForestConfig(max_tokens=1024, rollouts_per_state=60))
    for _ in range(60):
        order = [states[i] for i in rng.integers(0, 3, 6)]
        forest.insert_all(order, [rng.integers(0, 9, rng.integers(1, 24)).astype(np.int32) for _ in order])
        assert not broken(forest)


def test_one_state_for_each_turn_is_asked_for() -> None:
    forest = SpecForest()
    with pytest.raises(ValueError, match="expected 1, got 2"):
        forest.insert_all([DialogueState.from_tokens([1])], [[1], [2]])
    with pytest.raises(ValueError, match="turns must be token ids"):
        forest.insert_all([DialogueState.from_tokens([1])], [np.array([3, -1], np.int32)])
    assert forest.stats().rollouts == 0
