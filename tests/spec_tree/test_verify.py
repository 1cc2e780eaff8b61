from __future__ import annotations

import itertools

import numpy as np
import pytest

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.verify import root, sample_then_match


def batch(*rows: list[tuple[int, int]]) -> DraftBatch:
    """Trees from (token, parent) pairs."""
    depths = []
    for row in rows:
        own: list[int] = []
        for _, parent in row:
            own.append(1 if parent < 0 else own[parent] + 1)
        depths += own
    nodes = [node for row in rows for node in row]
    return DraftBatch(
        tokens=np.array([t for t, _ in nodes], np.int32),
        parents=np.array([p for _, p in nodes], np.int32),
        depths=np.array(depths, np.int32),
        probabilities=np.ones(len(nodes), np.float32),
        offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
    )


def walk(draft, says, room=9, stop=-1):
    """Emitted tokens of each row, and the nodes they matched, when row ``b`` says ``says[b]``."""
    asked = []

    def draw(rows, nodes, depth):
        asked.append(nodes.tolist())
        return np.array([says[b][depth] for b in rows]), np.full(len(rows), -0.5 * depth)

    result = sample_then_match(draft, draw, np.full(draft.rows, room), lambda _, tokens: np.asarray(tokens == stop))
    emitted = [result.tokens[:n, b].tolist() for b, n in enumerate(result.emitted)]
    return emitted, [result.path[:n, b].tolist() for b, n in enumerate(result.emitted)], asked


TREE = [(5, -1), (7, 0), (6, -1), (8, 2), (9, 1)]


def test_a_row_descends_while_the_policy_says_what_was_drafted():
    emitted, path, asked = walk(batch(TREE), [[6, 8, 1]])
    assert emitted == [[6, 8, 1]]
    assert path == [[2, 3, -1]]
    assert asked == [[0], [3], [4]], "each draw is from the distribution after the node reached"


def test_the_first_other_word_is_kept_and_ends_the_step():
    assert walk(batch(TREE), [[5, 8, 3]])[:2] == ([[5, 8]], [[0, -1]])


def test_an_empty_draft_emits_one_token():
    assert walk(DraftBatch.empty(2), [[4], [3]])[:2] == ([[4], [3]], [[-1], [-1]])


def test_rows_walk_their_own_trees():
    draft = batch(TREE, [], [(6, -1)], [(5, -1), (5, 0), (5, 1)])
    assert root(draft).tolist() == [0, 6, 7, 9]
    emitted, path, _ = walk(draft, [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]])
    assert emitted == [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]]
    assert path == [[0, 1, 4, -1], [-1], [0, -1], [0, 1, -1]]


def test_a_token_beyond_every_drafted_one_matches_nothing():
    """Keys are parent * width + token: a large token must not look like another parent's child."""
    draft = batch([(0, -1), (1, 0)])
    for token in range(2, 8):
        assert walk(draft, [[token, 0]])[0] == [[token]]


@pytest.mark.parametrize(("room", "expected"), [(1, [5]), (2, [5, 7]), (3, [5, 7, 9]), (4, [5, 7, 9, 1])])
def test_a_row_never_emits_more_than_it_has_room_for(room, expected):
    assert walk(batch(TREE), [[5, 7, 9, 1]], room=room)[0] == [expected]


def test_nothing_follows_a_stop_token():
    assert walk(batch(TREE), [[5, 7, 9, 1]], stop=7)[:2] == ([[5, 7]], [[0, 1]])


def test_the_emitted_law_is_the_policys_whatever_the_tree():
    """Enumerates every outcome of four draws over three tokens: each continuation that extends what was
    emitted keeps the policy's probability, for every tree of up to three nodes."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(3), size=(3, 3))
    for tokens in itertools.product(range(3), repeat=3):
        for parents in [(-1, -1, -1), (-1, 0, 0), (-1, 0, 1), (-1, -1, 1)]:
            if len(set(zip(tokens, parents, strict=True))) < 3:
                continue
            draft = batch(list(zip(tokens, parents, strict=True)))
            mass: dict[tuple[int, ...], float] = {}
            for said in itertools.product(range(3), repeat=4):
                emitted = tuple(walk(draft, [list(said)])[0][0])
                weight = np.prod([law[d % 3, said[d - 1] if d else 0, s] for d, s in enumerate(said)])
                mass[emitted] = mass.get(emitted, 0.0) + float(weight)
            for emitted, weight in mass.items():
                own = np.prod([law[d % 3, emitted[d - 1] if d else 0, s] for d, s in enumerate(emitted)])
                assert weight == pytest.approx(float(own), abs=1e-12)
