import numpy as np
import pytest
from draft_trees import draft_trees, random_trees

from turntree.agents.engines.sglang.worker.rows import best_nodes, tree_rows

torch = pytest.importorskip("torch")

from turntree.agents.engines.sglang.worker.rows import full_mask, tree_tensors  # noqa: E402

TREES = draft_trees([(5, -1), (6, 0), (7, -1), (8, 1), (9, 2)], [], [(1, -1), (2, 0)], last_probability=0.1)
LAST = np.array([3, 4, 0])


def paths(rows, row: int) -> list[tuple[int, ...]]:
    found = []
    for node in range(rows.width):
        seen = np.flatnonzero(rows.seen[row, node])
        order = seen[np.argsort(rows.depths[row, seen])]
        assert rows.depths[row, order].tolist() == list(range(len(order)))
        found.append(tuple(rows.tokens[row, order[1:]].tolist()))
    return found


def test_each_node_sees_its_own_path():
    rows = tree_rows(TREES, LAST, 6)
    assert rows.tokens[:, 0].tolist() == [3, 4, 0]
    assert paths(rows, 0) == [(), (5,), (5, 6), (7,), (5, 6, 8), (7, 9)]
    assert paths(rows, 2)[:3] == [(), (1,), (1, 2)]
    with pytest.raises(ValueError, match="4 nodes at width 5, got 5"):
        tree_rows(TREES, LAST, 5)


@pytest.mark.parametrize("seed", range(30))
def test_siblings_are_distinct_and_the_links_lead_to_every_drafted_node_and_no_other_which_are_sampled_by_paths(seed):
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, 4, 7)
    rows = tree_rows(trees, rng.integers(0, 9, 4), 8)
    drafted = np.diff(trees.offsets)
    assert drafted.min() < 7
    for row in range(4):
        reached = [0]
        for node in reached:
            below, children = int(rows.child[row, node]), []
            while below != -1:
                children.append(below)
                below = int(rows.sibling[row, below])
            tokens = rows.tokens[row, children].tolist()
            assert len(set(tokens)) == len(tokens)
            assert all(rows.seen[row, child, node] for child in children)
            reached += children
        assert sorted(reached) == list(range(1 + drafted[row]))
        assert len(set(paths(rows, row))) == 8
        sampled, last = np.full((4, 9), -1, np.int32), int(rng.choice(reached))
        path = paths(rows, row)[last]
        sampled[row, : len(path) + 1] = [*path, 98]
        assert rows.sampled(sampled)[row, : len(reached)].tolist() == rows.seen[row, last, : len(reached)].tolist()


def test_padding_is_a_chain_that_sees_the_last_node():
    rows = tree_rows(draft_trees([(5, -1), (6, -1)], [], [], last_probability=0.5), LAST, 5)
    assert paths(rows, 0) == [(), (5,), (6,), (6, 3), (6, 3, 3)]
    assert paths(rows, 1) == [(), (4,), (4, 4), (4, 4, 4), (4, 4, 4, 4)]


@pytest.mark.parametrize("seed", range(20))
def test_the_most_probable_nodes_of_each_row_stay_and_are_trees(seed):
    draft = random_trees(np.random.default_rng(seed), 5, 7)
    best = best_nodes(draft, 3)
    before, after = tree_rows(draft, np.zeros(5, np.int64), 8), tree_rows(best, np.zeros(5, np.int64), 4)
    for row in range(5):
        own = slice(int(draft.offsets[row]), int(draft.offsets[row + 1]))
        kept = slice(int(best.offsets[row]), int(best.offsets[row + 1]))
        wanted = np.sort(draft.probabilities[own])[::-1][:3]
        assert sorted(best.probabilities[kept], reverse=True) == pytest.approx(wanted.tolist())
        count = len(wanted)
        assert set(paths(after, row)[: count + 1]) <= set(paths(before, row))
        assert best.depths[kept].tolist() == after.depths[row, 1 : count + 1].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_each_node_of_the_mask_sees_the_context_and_its_own_path(seed):
    lengths = np.array([3, 0, 7, 1])
    rows = tree_rows(random_trees(np.random.default_rng(seed), 4, 5), np.zeros(4, np.int64), 6)
    wanted = [
        np.concatenate([np.ones((6, length), bool), rows.seen[row]], 1).ravel() for row, length in enumerate(lengths)
    ]
    assert full_mask(rows, lengths, "cpu").tolist() == np.concatenate(wanted).tolist()


def flags_read(lengths: np.ndarray, width: int, graph: int) -> int:
    # As FlashInfer reads the mask of a batch that SGLang 0.5.12 pads to `graph` rows of one token each:
    # `replay_prepare`, `get_cuda_graph_seq_len_fill_value`, and the plan's `mask_indptr`.
    return int((width * (np.append(lengths, [1] * (graph - len(lengths))) + width)).sum())


@pytest.mark.parametrize("graph", [4, 6, 16])
def test_the_mask_reaches_as_far_as_a_padded_batch_is_read(graph):
    lengths = np.array([3, 0, 7, 1])
    rows = tree_rows(random_trees(np.random.default_rng(0), 4, 5), np.zeros(4, np.int64), 6)
    bare, padded = (full_mask(rows, lengths, "cpu", batch=batch) for batch in (0, 16))
    assert len(bare) == flags_read(lengths, 6, 4)
    assert len(padded) >= flags_read(lengths, 6, graph)
    assert padded[: len(bare)].equal(bare)
    assert padded[len(bare) :].all(), "a row that nobody wants sees all, so that no softmax is over nothing"


def test_a_mask_without_padding_is_read_beyond_its_end():
    """Control."""
    lengths = np.array([3, 0, 7])
    rows = tree_rows(random_trees(np.random.default_rng(0), 3, 5), np.zeros(3, np.int64), 6)
    assert len(full_mask(rows, lengths, "cpu")) < flags_read(lengths, 6, 4)


def test_positions_go_on_from_the_context():
    rows = tree_rows(random_trees(np.random.default_rng(1), 3, 5), np.arange(3), 6)
    tokens, positions, indices, *_ = tree_tensors(rows, torch.tensor([4, 0, 9]), "cpu")
    assert tokens.view(3, 6)[:, 0].tolist() == [0, 1, 2]
    assert (positions.view(3, 6) - torch.tensor([[4], [0], [9]])).tolist() == rows.depths.tolist()
    assert indices.tolist() == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]
