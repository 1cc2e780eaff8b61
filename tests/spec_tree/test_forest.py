"""The store's promises: well-formed drafts, exact forgetting, siblings, rungs, bounds, threads."""

import random
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, SpecForest, UnknownTurn

END = 9
CONFIG = ForestConfig(end_tokens=frozenset({END}), rollouts_per_state=4)
PREFIX_ONLY = (("exact", 1024, 1.0),)

said = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def state(index: int = 0, **known: str) -> DialogueState:
    return DialogueState.from_tokens([100, index], **known)


def counts(forest: SpecForest) -> dict[int, dict[int, int]]:
    return forest._graph.counts()


def rows(batch: DraftBatch) -> list[list[tuple[int, int, int, float]]]:
    columns = list(
        zip(
            batch.tokens.tolist(),
            batch.parents.tolist(),
            batch.depths.tolist(),
            batch.probabilities.tolist(),
            strict=True,
        )
    )
    bounds = batch.offsets.tolist()
    return [columns[a:b] for a, b in pairwise(bounds)]


def draft_tokens(forest: SpecForest, at: DialogueState, spoken: list[int], **options: object) -> list[int]:
    """What is drafted for a turn at ``at`` that has said ``spoken``."""
    handles = forest.begin([at])
    forest.commit(handles, [spoken])
    options = {"max_nodes": 4, "room": [8], "chain": True, **options}
    tokens = forest.draft(handles, **options).tokens.tolist()  # type: ignore[arg-type]
    forest.end(handles, keep=False)
    return tokens


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 2), said), max_size=12),
    live=st.lists(st.tuples(st.integers(0, 3), said), min_size=1, max_size=4),
    max_nodes=st.integers(0, 9),
    room=st.integers(0, 5),
    floor=st.sampled_from([0.0, 0.1, 0.4]),
    chain=st.booleans(),
    total=st.one_of(st.none(), st.integers(0, 12)),
)
def test_drafts_are_trees_within_every_bound(
    turns: list[tuple[int, list[int]]],
    live: list[tuple[int, list[int]]],
    max_nodes: int,
    room: int,
    floor: float,
    chain: bool,
    total: int | None,
) -> None:
    forest = SpecForest(CONFIG)
    for index, tokens in turns:
        forest.insert(state(index, task="t", env="e"), [*tokens, END])
    handles = forest.begin([state(index, task="t", env="e") for index, _ in live])
    forest.commit(handles, [tokens for _, tokens in live])
    batch = forest.draft(
        handles,
        max_nodes=max_nodes,
        room=[room] * len(live),
        min_probability=floor,
        chain=chain,
        total_nodes=total,
    )
    assert batch.rows == len(live)
    assert total is None or len(batch.tokens) <= total
    for nodes in rows(batch):
        assert len(nodes) <= max_nodes
        assert len({(parent, token) for token, parent, _, _ in nodes}) == len(nodes)
        for index, (_, parent, depth, p) in enumerate(nodes):
            assert -1 <= parent < index
            assert 1 <= depth <= room
            assert floor * 0.999 <= p <= 1.0 + 1e-6
            above = nodes[parent] if parent >= 0 else (None, -1, 0, 1.0)
            assert depth == above[2] + 1
            assert p <= above[3] + 1e-6
            assert above[0] != END
        if chain:
            assert [parent for _, parent, _, _ in nodes] == list(range(-1, len(nodes) - 1))


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.tuples(st.integers(0, 2), said), min_size=1, max_size=20), live=said)
def test_quota_gives_counts_back_as_if_the_oldest_turns_had_never_been(
    turns: list[tuple[int, list[int]]], live: list[int]
) -> None:
    forest, fresh = SpecForest(CONFIG), SpecForest(CONFIG)
    for index, tokens in turns:
        forest.insert(state(index, task="t", env="e"), tokens)
    for index in {index for index, _ in turns}:
        for tokens in [tokens for i, tokens in turns if i == index][-4:]:
            fresh.insert(state(index, task="t", env="e"), tokens)
    assert counts(forest) == counts(fresh)
    assert forest.stats().tokens == fresh.stats().tokens
    at = state(0, task="t", env="e")
    assert draft_tokens(forest, at, live, max_nodes=8, chain=False) == draft_tokens(
        fresh, at, live, max_nodes=8, chain=False
    )


def test_memory_bound_drops_the_least_recently_used_states() -> None:
    forest = SpecForest(ForestConfig(max_tokens=10))
    for index in range(3):
        forest.insert(state(index, env="e"), [index, 7, 7, 8])
    fresh = SpecForest(ForestConfig(max_tokens=10))
    for index in (1, 2):
        fresh.insert(state(index, env="e"), [index, 7, 7, 8])
    assert counts(forest) == counts(fresh)
    stats = forest.stats()
    assert (stats.states, stats.tokens, stats.evicted_states, stats.evicted_rollouts) == (2, 8, 1, 1)


def test_use_protects_a_state_from_eviction() -> None:
    forest = SpecForest(ForestConfig(max_tokens=10))
    forest.insert(state(0), [1, 2, 3, 4])
    forest.insert(state(1), [1, 2, 3, 4])
    forest.end(forest.begin([state(0)]))
    forest.insert(state(2), [1, 2, 3, 4])
    assert forest.tree(state(0)).count == 1
    assert forest.tree(state(1)).count == 0


def test_a_state_with_live_turns_is_never_evicted() -> None:
    forest = SpecForest(ForestConfig(max_tokens=3))
    forest.insert(state(0), [1, 2])
    handles = forest.begin([state(0)])
    forest.insert(state(1), [3, 4])
    forest.commit(handles, [[1, 2]])
    assert forest.tree(state(0)).count == 2
    forest.end(handles, keep=False)
    assert forest.stats().live == 0


def test_an_aborted_turn_leaves_nothing_behind() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(0, task="t", env="e"), [1, 2, 3])
    before = counts(forest)
    handles = forest.begin([state(0, task="t", env="e"), state(1, task="t", env="e")])
    forest.commit(handles, [[1, 2, 4, 4, 4], [5, 4, 4]])
    assert counts(forest) != before
    forest.end(handles, keep=False)
    assert counts(forest) == before
    assert forest.stats().states == 1


def test_forgetting_everything_leaves_an_empty_graph() -> None:
    forest = SpecForest(CONFIG)
    handles = forest.begin([state(i % 3, task="t", env="e") for i in range(6)])
    rng = random.Random(0)
    for _ in range(10):
        forest.commit(handles, [[rng.randrange(4) for _ in range(rng.randrange(4))] for _ in handles])
    forest.end(handles, keep=False)
    assert counts(forest) == {}
    assert forest.stats().contexts == 0


def test_numbers_of_forgotten_contexts_are_used_again() -> None:
    forest = SpecForest(ForestConfig(rollouts_per_state=2))
    rng = random.Random(0)
    for _ in range(200):
        forest.insert(state(env="e"), [rng.randrange(50) for _ in range(10)])
    assert len(forest._graph._level) < 4 * forest.stats().contexts


def test_the_first_token_is_drafted_from_earlier_turns() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(), [3, 4, END])
    assert draft_tokens(forest, state(), []) == [3, 4, END]
    assert draft_tokens(forest, state(1), []) == []


def test_unfinished_siblings_profit_at_once() -> None:
    forest = SpecForest(CONFIG)
    leader, follower = forest.begin([state(), state()])
    assert not len(forest.draft([follower], max_nodes=4, room=[4]).tokens)
    forest.commit([leader], [[1, 2, 3]])
    assert forest.draft([follower], max_nodes=4, room=[4]).tokens.tolist() == [1, 2, 3]
    forest.commit([leader], [[4]])
    forest.commit([follower], [[1, 2, 3]])
    assert forest.draft([follower], max_nodes=4, room=[4]).tokens.tolist() == [4]


def test_a_turn_that_left_the_tree_joins_again_and_without_re_joining_it_does_not() -> None:
    turn = [1, 2, 3, 4, 5, 6, 7, 8]
    slipped = [1, 2, 0, 4, 5]
    forest, control = SpecForest(CONFIG), SpecForest(ForestConfig(levels=PREFIX_ONLY))
    for store in (forest, control):
        store.insert(state(env="e"), turn)
    assert draft_tokens(forest, state(env="e"), slipped) == [6, 7, 8]
    assert draft_tokens(control, state(env="e"), slipped) == []
    assert draft_tokens(control, state(env="e"), turn[:4]) == [5, 6, 7, 8]


def test_wider_rungs_answer_where_the_state_is_new_and_only_for_whom_they_concern() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(0, task="a", tools="look", env="e"), [1, 2, END])
    forest.insert(state(1, task="a", tools="else", env="e"), [3, 4, END])
    forest.insert(state(2, task="b", env="e"), [5, 6, END])
    forest.insert(state(3, task="b", env="e"), [5, 6, END])
    # same task and tool history, with another observation
    assert draft_tokens(forest, state(7, task="a", tools="look", env="e"), []) == [1, 2, END]
    # same task only: both ways that the task has seen, before that of another task
    both = draft_tokens(forest, state(8, task="a", tools="new", env="e"), [], room=[1], chain=False, max_nodes=2)
    assert sorted(both) == [1, 3]
    # the environment only
    assert draft_tokens(forest, state(9, task="c", env="e"), [])[0] in (1, 3, 5)
    assert draft_tokens(forest, state(9, task="c", env="other"), []) == []


def test_nothing_is_drafted_after_an_end_token() -> None:
    forest = SpecForest(CONFIG)
    plain = SpecForest()
    for store in (forest, plain):
        store.insert(state(), [1, END, 1, END, 1, END])
    assert draft_tokens(forest, state(), []) == [1, END]
    assert draft_tokens(forest, state(), [1, END]) == []
    assert draft_tokens(plain, state(), [1, END]) == [1, END, 1, END]


def test_a_batch_budget_goes_to_the_most_probable_nodes_of_all_rows() -> None:
    forest = SpecForest(CONFIG)
    for _ in range(4):
        forest.insert(state(0), [1, 2, 3])
    for token in range(4):
        forest.insert(state(1), [token, 4, 5])
    handles = forest.begin([state(1), state(0)])
    whole = rows(forest.draft(handles, max_nodes=8, room=[3, 3]))
    best = sorted((p for nodes in whole for *_, p in nodes), reverse=True)[:3]
    unsure, sure = rows(forest.draft(handles, max_nodes=8, room=[3, 3], total_nodes=3))
    assert unsure == []
    assert [(token, parent) for token, parent, _, _ in sure] == [(1, -1), (2, 0), (3, 1)]
    assert [p for *_, p in sure] == best


def test_accepted_counts_the_draft_tokens_that_came_true() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(), [1, 2, 3, END])
    forest.insert(state(), [1, 4, 5, END])
    handles = forest.begin([state()])
    forest.commit(handles, [[1]])  # nothing was drafted
    assert forest.stats().accepted == 0
    forest.draft(handles, max_nodes=8, room=[8])
    forest.commit(handles, [[4, 5, 7]])
    stats = forest.stats()
    assert (stats.accepted, stats.drafted, stats.committed) == (2, 6, 4)
    forest.commit(handles, [[2]])  # without a draft in between
    assert forest.stats().accepted == 2


def test_nodes_cut_by_the_batch_budget_are_neither_drafted_nor_accepted() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(), [1, 2, 3])
    handles = forest.begin([state()])
    forest.draft(handles, max_nodes=8, room=[8], total_nodes=1)
    forest.commit(handles, [[1, 2, 3]])
    assert (forest.stats().drafted, forest.stats().accepted) == (1, 1)


def test_probabilities_follow_the_counts() -> None:
    forest = SpecForest(ForestConfig(levels=PREFIX_ONLY))
    for token, times in ((1, 6), (2, 3)):
        for _ in range(times):
            forest.insert(state(), [token])
    handles = forest.begin([state()])
    ((one, *_, p_one), (two, *_, p_two)) = rows(forest.draft(handles, max_nodes=4, room=[1]))[0]
    assert (one, two) == (1, 2)
    assert (p_one, p_two) == pytest.approx((6 / 10, 3 / 10))


def test_an_ended_handle_is_unknown() -> None:
    forest = SpecForest()
    handles = forest.begin([state()])
    forest.end(handles)
    for call in (
        lambda: forest.draft(handles, max_nodes=1, room=[1]),
        lambda: forest.commit(handles, [[1]]),
        lambda: forest.end(handles),
        lambda: forest.commit([77], [[1]]),
    ):
        with pytest.raises(UnknownTurn, match="names no live turn"):
            call()


def test_an_unknown_handle_leaves_the_rest_of_its_batch_untouched() -> None:
    forest = SpecForest()
    handles = forest.begin([state()])
    before = counts(forest)
    with pytest.raises(UnknownTurn):
        forest.commit([*handles, 77], [[1, 2], [3]])
    assert counts(forest) == before


def test_rows_and_arguments_must_agree() -> None:
    forest = SpecForest()
    handles = forest.begin([state(), state(1)])
    with pytest.raises(ValueError, match="expected 2, got 1"):
        forest.draft(handles, max_nodes=1, room=[1])
    with pytest.raises(ValueError, match="expected 2, got 1"):
        forest.commit(handles, [[1]])


def test_clear_forgets_turns_and_keeps_counters() -> None:
    forest = SpecForest()
    handles = forest.begin([state()])
    forest.commit(handles, [[1, 2]])
    forest.clear()
    stats = forest.stats()
    assert (stats.states, stats.contexts, stats.live, stats.committed) == (0, 0, 0, 2)
    with pytest.raises(UnknownTurn):
        forest.end(handles)


def test_no_rows_make_an_empty_batch() -> None:
    batch = SpecForest().draft([], max_nodes=4, room=[])
    assert batch.rows == 0
    assert batch.tokens.dtype == np.int32


def test_tree_shows_finished_and_live_turns() -> None:
    forest = SpecForest()
    forest.insert(state(), [1, 2])
    handles = forest.begin([state()])
    forest.commit(handles, [[1, 3]])
    tree = forest.tree(state())
    assert (tree.count, tree.children[0].count) == (2, 2)
    assert [child.token for child in tree.children[0].children] == [2, 3]


def test_threads_leave_the_counts_of_the_turns_they_kept() -> None:
    config = ForestConfig(rollouts_per_state=1000)
    forest, alone = SpecForest(config), SpecForest(config)
    scripts = [[[random.Random(i * 100 + k).randrange(4) for _ in range(8)] for k in range(30)] for i in range(4)]
    failures: list[Exception] = []

    def work(turns: list[list[int]]) -> None:
        try:
            for tokens in turns:
                kept, aborted = forest.begin([state(env="e"), state(1, env="e")])
                for token in tokens:
                    forest.draft([kept, aborted], max_nodes=4, room=[4, 4])
                    forest.commit([kept, aborted], [[token], [token]])
                forest.end([kept])
                forest.end([aborted], keep=False)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(turns,)) for turns in scripts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    for turns in scripts:
        for tokens in turns:
            alone.insert(state(env="e"), tokens)
    assert counts(forest) == counts(alone)
