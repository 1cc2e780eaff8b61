from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from forest_checks import best_path, broken, malformed, rows_of, turns_in
from plain_forest import PREFIX_ONLY, PlainForest

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest, UnknownTurn
from turntree.spec_tree.kernels.weights import parts

END = 9
CONFIG = ForestConfig(end_tokens=frozenset({END}), rollouts_per_state=4)


def state(index: int = 0, **known: str) -> DialogueState:
    return DialogueState.from_tokens([100, index], **known)


@pytest.fixture
def forest() -> SpecForest:
    return SpecForest()


def draft_tokens(forest: Any, at: DialogueState, spoken: list[int], **options: Any) -> list[int]:
    handles = forest.begin([at])
    forest.commit(handles, [spoken])
    options = {"max_nodes": 4, "max_depths": [8], "chain": True, **options}
    tokens: list[int] = forest.draft(handles, **options).tokens.tolist()
    forest.end(handles, keep=False)
    return tokens


def test_a_turn_is_not_drafted_from_its_own_end() -> None:
    forest = SpecForest(CONFIG)
    handles = forest.begin([state()])
    forest.commit(handles, [[1, 2, 3]])
    assert not len(forest.draft(handles, max_nodes=8, max_depths=[8]).tokens)
    forest.commit(handles, [[1, 2]])
    assert forest.draft(handles, max_nodes=3, max_depths=[8]).tokens.tolist() == [3, 1, 2]


def test_a_turn_that_left_the_tree_joins_again_and_without_re_joining_it_does_not() -> None:
    turn = [1, 2, 3, 4, 5, 6, 7, 8]
    slipped = [1, 2, 0, 4, 5]
    forest, control = SpecForest(CONFIG), PlainForest(levels=PREFIX_ONLY)
    forest.insert(state(env="e"), turn)
    control.insert(state(env="e"), turn)
    assert draft_tokens(forest, state(env="e"), slipped) == [6, 7, 8]
    assert draft_tokens(control, state(env="e"), slipped) == []
    assert draft_tokens(control, state(env="e"), turn[:4]) == [5, 6, 7, 8]


def test_wider_rungs_answer_where_the_state_is_new_and_only_for_whom_they_concern() -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(0, task="a", tools="look", env="e"), [1, 2, END])
    forest.insert(state(1, task="a", tools="else", env="e"), [3, 4, END])
    forest.insert(state(2, task="b", env="e"), [5, 6, END])
    forest.insert(state(3, task="b", env="e"), [5, 6, END])
    # same task and tool history, with another observation: the history's own beginning is the likelier
    assert draft_tokens(forest, state(7, task="a", tools="look", env="e"), []) == [1, 2, END]
    # what the task said goes on within a turn
    assert draft_tokens(forest, state(8, task="a", tools="new", env="e"), [7, 3, 4])[0] == END
    # the environment only
    assert draft_tokens(forest, state(9, task="c", env="e"), [])[0] in (1, 3, 5)
    assert draft_tokens(forest, state(9, task="c", env="other"), []) == []
    assert draft_tokens(forest, state(9, task="c", env="other"), [5, 6]) == []


def test_a_turn_is_drafted_from_its_own_context_and_from_nobody_elses() -> None:
    forest = SpecForest(CONFIG)
    mine, other, none = forest.begin([state()] * 3, [[1, 2, 3, 4], [1, 2, 5, 6], []])
    forest.commit([mine, other, none], [[1, 2], [1, 2], [1, 2]])
    drafts = [set(forest.draft([h], max_nodes=8, max_depths=[1]).tokens.tolist()) for h in (mine, other, none)]
    assert drafts == [{3}, {5}, set()]
    forest.end([mine, other])
    assert not {3, 4, 5, 6} & set(draft_tokens(forest, state(), [1, 2], max_nodes=8, chain=False))


def test_of_many_long_contexts_nearly_all_places_are_found_also_after_room_was_made_for_them() -> None:
    forest, rng = SpecForest(CONFIG), np.random.default_rng(0)
    contexts = rng.integers(10, 30_000, (64, 4000))
    first = forest.begin([state()], [contexts[0]])
    before = forest.stats().context_bytes
    handles = first + forest.begin([state()] * 63, list(contexts[1:]))
    assert forest.stats().context_bytes > before
    at = rng.integers(2, 3990, 64)
    forest.commit(handles, [contexts[row, index - 2 : index].tolist() for row, index in enumerate(at)])
    drafts = rows_of(forest.draft(handles, max_nodes=1, max_depths=[1] * 64))
    found = [[node.token for node in nodes] == [contexts[row, at[row]]] for row, nodes in enumerate(drafts)]
    assert found[0], "it was copied"
    assert sum(found) >= 62


def test_a_batch_budget_goes_to_the_most_probable_nodes_of_all_rows() -> None:
    forest = SpecForest(CONFIG)
    for _ in range(4):
        forest.insert(state(0), [1, 2, 3])
    for token in range(4, 8):
        forest.insert(state(1), [token, 8, token])
    handles = forest.begin([state(1), state(0)])
    whole = rows_of(forest.draft(handles, max_nodes=8, max_depths=[3, 3]))
    for total in range(17):
        best = sorted((node.probability for nodes in whole for node in nodes), reverse=True)[:total]
        cut = rows_of(forest.draft(handles, max_nodes=8, max_depths=[3, 3], total_nodes=total))
        assert sorted((node.probability for nodes in cut for node in nodes), reverse=True) == best
        assert [nodes[: len(kept)] for nodes, kept in zip(whole, cut, strict=True)] == cut
    unsure, sure = rows_of(forest.draft(handles, max_nodes=8, max_depths=[3, 3], total_nodes=2))
    assert len(sure) > len(unsure)


def test_a_chain_does_not_turn_back_to_a_sibling(forest: SpecForest) -> None:
    """Not even if the sibling is likelier than every child of the best node."""
    for turn in [*([1, token] for token in range(10, 18)), *([2, token] for token in range(20, 24))]:
        forest.insert(state(), turn)
    handles = forest.begin([state()])
    for room in (1, 2, 8):
        (nodes,) = rows_of(forest.draft(handles, max_nodes=8, max_depths=[room], chain=True))
        assert nodes[0].token == 1
        assert not malformed(nodes, last=-1, room=room, max_nodes=8, chain=True)


def test_probabilities_are_as_often_right_as_they_say() -> None:
    forest = SpecForest(ForestConfig(rollouts_per_state=64))
    rng = np.random.default_rng(0)
    believed = np.zeros((1200, 2))
    for step in range(1200):
        handles = forest.begin([state()])
        for node in rows_of(forest.draft(handles, max_nodes=8, max_depths=[8]))[0]:
            if node.depth == 1:
                believed[step, node.token - 1] = node.probability
        forest.commit(handles, [[1 if rng.random() < 0.8 else 2, 3]])
        forest.end(handles)
    assert believed[600:].mean(0) == pytest.approx([0.8, 0.2], abs=0.06)
    assert believed[:10].mean() < 0.6 < believed[600:, 0].mean()  # the control: it was learnt


def test_probabilities_stay_probabilities_however_often_drafts_fail(forest: SpecForest) -> None:
    forest.insert(state(), list(range(100, 240)))
    for _ in range(3000):
        handles = forest.begin([state()])
        forest.draft(handles, max_nodes=128, max_depths=[200])
        forest.commit(handles, [[1]])
        forest.end(handles, keep=False)
    for _ in range(20):  # the deepest draft comes true
        handles = forest.begin([state()])
        forest.draft(handles, max_nodes=128, max_depths=[128], chain=True)
        forest.commit(handles, [list(range(100, 228))])
        forest.end(handles, keep=False)
    assert all(np.isfinite(array).all() for array in parts(forest.weights).values())
    handles = forest.begin([state()])
    for chain in (False, True):
        (nodes,) = rows_of(forest.draft(handles, max_nodes=128, max_depths=[200], chain=chain))
        assert nodes
        assert not malformed(nodes, last=-1, room=200, max_nodes=128, chain=chain)


def test_handles_are_not_given_twice_though_rows_are_used_again(forest: SpecForest) -> None:
    given: set[int] = set()
    for count in (1, 3, 300, 2, 700):
        handles = forest.begin([state()] * count)
        forest.commit(handles, [[1, 2]] * count)
        assert len(handles) == count
        assert not given & set(handles)
        given.update(handles)
        assert not broken(forest)  # those that went on while more rows were made still know what they said
        forest.end(handles[::2], keep=False)
    assert forest.tree(state()).count == forest.stats().live == sum(count // 2 for count in (1, 3, 300, 2, 700))


def test_a_refused_call_leaves_the_rest_of_its_batch_untouched(forest: SpecForest) -> None:
    handles = forest.begin([state()])
    forest.commit(handles, [[5]])
    before = forest.tree(state()).to_dict()
    with pytest.raises(UnknownTurn):
        forest.commit([*handles, 77], [[1, 2], [3]])
    with pytest.raises(ValueError, match="token ids"):
        forest.commit([*handles, *handles], [[1, 2], [-3]])
    with pytest.raises(UnknownTurn):
        forest.end([*handles, 77])
    with pytest.raises(ValueError, match="each turn once"):
        forest.end([*handles, *handles])
    with pytest.raises(ValueError, match="token ids"):
        forest.begin([state(), state()], [[1, 2], [-1]])
    assert forest.tree(state()).to_dict() == before
    assert forest.stats().live == 1
    assert not broken(forest)


def test_turns_that_begin_and_end_together_are_drafted_and_kept_as_one_by_one() -> None:
    """With a log and a ring so small that both wrap around, and several turns at once at a state."""
    rng = np.random.default_rng(1)
    config = ForestConfig(max_tokens=4096, max_context_tokens=2048, rollouts_per_state=3)
    together, single = SpecForest(config), SpecForest(config)
    drafted = 0
    for _ in range(40):
        states = [state(int(rng.integers(6))) for _ in range(12)]
        contexts = [rng.integers(0, 5, int(rng.integers(0, 60))).tolist() for _ in states]
        said = [rng.integers(0, 5, int(rng.integers(0, 20))).tolist() for _ in states]
        handles = together.begin(states, contexts)
        others = [single.begin([one], [context])[0] for one, context in zip(states, contexts, strict=True)]
        for k in (0, 8):
            drafts = [
                forest.draft(turns, max_nodes=6, max_depths=[6] * 12)
                for forest, turns in ((together, handles), (single, others))
            ]
            for one, other in zip(*map(astuple, drafts), strict=True):
                assert one.tolist() == other.tolist()
            drafted += len(drafts[0].tokens)
            new = [tokens[k : k + 8] for tokens in said]
            together.commit(handles, new)
            single.commit(others, new)
        keep = bool(rng.random() < 0.8)
        together.end(handles, keep=keep)
        for handle in others:
            single.end([handle], keep=keep)
        assert together.stats() == single.stats()
        for n in range(6):
            assert turns_in(together.tree(state(n))) == turns_in(single.tree(state(n)))
    assert drafted > 1000


def test_rows_and_arguments_must_agree_and_an_ended_handle_is_unknown(forest: SpecForest) -> None:
    handles = forest.begin([state(), state(1)])
    with pytest.raises(ValueError, match="max_depths needs one entry per row: expected 2, got 1"):
        forest.draft(handles, max_nodes=1, max_depths=[1])
    with pytest.raises(ValueError, match="tokens needs one entry per row: expected 2, got 1"):
        forest.commit(handles, [[1]])
    with pytest.raises(ValueError, match="contexts needs one entry per state: expected 2, got 1"):
        forest.begin([state(), state()], [[1]])
    handles = forest.begin([state()])
    forest.end(handles)
    for call in (
        lambda: forest.draft(handles, max_nodes=1, max_depths=[1]),
        lambda: forest.commit(handles, [[1]]),
        lambda: forest.end(handles),
        lambda: forest.commit([77], [[1]]),
    ):
        with pytest.raises(UnknownTurn, match="is not a live turn"):
            call()


@pytest.mark.parametrize(
    "tokens",
    [
        *([-1], [1, 2, -3], [2**31], [2**40], [2**70]),
        *([1.0], [0, 1.5], ["a"], [[1], [2]], [[1], [2, 3]], [None], [True]),
        *(np.array([2**32 + 5]), np.array([2.0]), np.array([np.nan]), np.array([2**63 + 1], np.uint64)),
    ],
    ids=repr,
)
def test_what_is_no_token_id_is_refused_everywhere(tokens: Any, forest: SpecForest) -> None:
    handles = forest.begin([state()])
    for call in (
        lambda: forest.insert(state(), tokens),
        lambda: forest.commit(handles, [tokens]),
        lambda: forest.begin([state()], [tokens]),
    ):
        with pytest.raises(ValueError, match=r"must be token ids from 0 to 2147483647"):
            call()
    assert (forest.stats().rollouts, forest.stats().live) == (0, 1)
    assert not forest.tree(state()).children


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, np.uint16)])
def test_token_ids_may_come_as_any_sequence(kind: Any, forest: SpecForest) -> None:
    forest.insert(state(), kind([1, 2]))
    handles = forest.begin([state()], [kind([7, 8])])
    forest.commit(handles, [kind([1, 3])])
    assert turns_in(forest.tree(state())) == {(1, 2): 1, (1, 3): 1}


def test_clear_forgets_turns_and_keeps_counters(forest: SpecForest) -> None:
    forest.insert(state(), [1, 2, 3])
    handles = forest.begin([state()], [[1, 2, 3]])
    forest.commit(handles, [[1, 2]])
    forest.clear()
    stats = forest.stats()
    assert (stats.states, stats.rollouts, stats.live, stats.committed) == (0, 0, 0, 2)
    with pytest.raises(UnknownTurn):
        forest.end(handles)
    assert draft_tokens(forest, state(), [1, 2]) == []
    assert not set(handles) & set(forest.begin([state()]))


def test_a_long_turn_is_drafted_to_its_end_though_it_lies_in_pieces(forest: SpecForest) -> None:
    turn = np.random.default_rng(0).integers(0, 2**31, 700).tolist()
    writers = forest.begin([state(), state(1)])  # the second writes between the first one's pieces
    for start in range(0, 700, 7):
        forest.commit(writers, [turn[start : start + 7], [5]])
    reader = forest.begin([state()])
    at = 0
    while at < 700:
        (nodes,) = rows_of(forest.draft(reader, max_nodes=100, max_depths=[100], chain=True))
        right = best_path(nodes, turn[at:])
        assert right == min(100, 700 - at)
        forest.commit(reader, [turn[at : at + right]])
        at += right
    assert not broken(forest)
