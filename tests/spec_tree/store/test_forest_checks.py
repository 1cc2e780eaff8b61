from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forest_checks import Node, broken, indexed, malformed, misremembered, rows_of, unfounded

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.kernels.layout import END, TokenLog
from turntree.spec_tree.store import turn_store
from turntree.spec_tree.store.retention import RetentionPolicy

STATE = DialogueState.from_tokens([1], env="e")
GOOD = [Node(5, -1, 1, 0.5), Node(6, -1, 1, 0.25), Node(7, 0, 2, 0.25)]


@pytest.mark.parametrize(
    ("changed", "limits", "complaint"),
    [
        *[({}, {"max_nodes": 2}, "3 nodes, 2 allowed"), ({}, {"last": 9}, "a draft after a turn's end")],
        *[({}, {"room": 1}, "depth 2"), ({}, {"chain": True}, "branches off")],
        *[({}, {"ends": {5}}, "node 2 follows an end"), ({}, {"floor": 0.3}, "probability 0.25")],
        *[({1: Node(5, -1, 1, 0.25)}, {}, "siblings alike"), ({0: Node(5, 2, 3, 0.5)}, {}, "before its parent")],
        *[({2: Node(7, 0, 1, 0.25)}, {}, "depth 1"), ({2: Node(-2, 0, 2, 0.25)}, {}, "no token")],
        *[({2: Node(7, 0, 2, chance)}, {}, f"probability {chance}") for chance in (0.6, 0.0, float("nan"))],
        *[({0: Node(5, -1, 1, 1.5)}, {}, "probability 1.5"), ({1: Node(6, -1, 1, 0.2)}, {}, "likelier")],
    ],
)
def test_a_malformed_draft_is_noticed(changed: dict[int, Node], limits: dict[str, Any], complaint: str) -> None:
    form: dict[str, Any] = {"last": 4, "room": 2, "max_nodes": 3, "ends": {9}, **limits}
    nodes = [changed.get(index, node) for index, node in enumerate(GOOD)]
    assert not malformed(GOOD, last=4, room=2, max_nodes=3, ends={9})
    assert any(complaint in wrong for wrong in malformed(nodes, **form))


def test_an_edge_that_nobody_went_is_noticed() -> None:
    said = [(4, 5, 7), (4, 6)]
    assert not unfounded(GOOD, 4, said)
    assert not unfounded(GOOD, -1, said)  # tokens of others at the root
    assert unfounded(GOOD, 4, [(4, 5), (4, 6), (7,)])
    assert unfounded(GOOD, 4, [(4, 6)])
    assert not unfounded(GOOD, 4, [(4, 6)], context=[3, 4, 5, 7])
    assert not unfounded([Node(5, -1, 1, 0.5)], -1, [(5,)])


def test_a_store_that_learnt_an_observation_is_noticed() -> None:
    """Control of "observations never enter": one does, as if it had been sampled."""
    asked = [1, 2, 3, 4]
    for entered in (False, True):
        forest = SpecForest()
        forest.insert(STATE, [1, 2, 9])
        if entered:
            forest.insert(STATE, asked)
        (handle,) = forest.begin([STATE])
        forest.commit([handle], [[1, 2]])
        (nodes,) = rows_of(forest.draft([handle], max_nodes=16, max_depths=[8]))
        assert bool(unfounded(nodes, 2, [(1, 2, 9), (1, 2)])) == entered


def test_followers_that_outlive_their_turn_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control of "an aborted turn is never drafted": its followers stay."""

    def drafted_after_aborting() -> list[str]:
        forest = SpecForest()
        handles = forest.begin([STATE])
        forest.commit(handles, [[1, 2, 3, 4]])
        forest.end(handles, keep=False)
        handles = forest.begin([STATE])
        forest.commit(handles, [[1, 2]])
        (nodes,) = rows_of(forest.draft(handles, max_nodes=16, max_depths=[8]))
        return unfounded(nodes, 2, [(1, 2)])

    assert not drafted_after_aborting()
    drop = turn_store.drop_turns

    def drop_but_for_followers(starts: Any, slots: Any, kept: Any, log: TokenLog, keys: Any) -> None:
        drop(starts, slots, kept, log._replace(followers=log.followers.copy(), followed=log.followed.copy()), keys)

    monkeypatch.setattr(turn_store, "drop_turns", drop_but_for_followers)
    assert drafted_after_aborting()


FAULTS: dict[str, Callable[[RetentionPolicy], object]] = {
    "a slot is lost": lambda held: held.store.free.pop(),
    "a granule is lost": lambda held: np.put(held.store.log.owner, np.flatnonzero(held.store.log.owner)[-1], 0),
    "a free granule has an owner": lambda held: np.put(
        held.store.log.owner, int(held.store.head[0]) // 16, held.store.turns()[0].slot
    ),
    "a turn is cut": lambda held: np.put(held.store.log.tokens, held.store.turns()[0].start + 1, END),
    "a turn is forgotten": lambda held: next(state for state in held.by_state.values() if state.turns).turns.pop(),
    "tokens are miscounted": lambda held: setattr(held, "tokens", held.tokens + 1),
    "a free slot has a key": lambda held: np.put(held.store.keys[held.store.free[0]], 0, 7),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_store_is_noticed(fault: str) -> None:
    forest = SpecForest(ForestConfig(max_tokens=1024))
    for index in range(30):
        forest.insert(DialogueState.from_tokens([index]), [index] * 50)
    forest.commit(forest.begin([STATE]), [[1, 2, 3]])
    assert not broken(forest)
    FAULTS[fault](forest.rollouts)
    assert broken(forest)


def test_a_turn_that_changed_or_was_lost_without_account_is_noticed() -> None:
    forest = SpecForest()
    forest.insert(STATE, [1, 2, 3])
    forest.insert(STATE, [4])
    forest.commit(forest.begin([STATE]), [[5]])
    assert not misremembered(forest, {STATE: [(4,), (1, 2, 3)]}, [(5,)])
    assert misremembered(forest, {STATE: [(4,), (1, 2, 3)]}, [])
    assert misremembered(forest, {STATE: [(4,), (1, 2, 6)]}, [(5,)])
    assert misremembered(forest, {STATE: [(4,), (1, 2, 3), (7,)]}, [(5,)])
    assert sorted(indexed(forest)) == [(1, 2, 3), (4,), (5,)]
