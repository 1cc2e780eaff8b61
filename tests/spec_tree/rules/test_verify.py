import numpy as np
import pytest
from draft_trees import draft_trees
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules import verify
from turntree.spec_tree.rules.noise import exponential


def walk(draft, says, token_limit=9, stop=-1):
    """Return emitted tokens, matched nodes, and the asked nodes if row ``b`` samples ``says[b]``."""
    asked = []

    def draw(rows, nodes, depth):
        asked.append(nodes.tolist())
        return np.array([says[b][depth] for b in rows]), np.full(len(rows), -0.5 * depth)

    limits = np.full(draft.rows, token_limit)
    result = verify.sample_then_match(draft, draw, limits, lambda _, tokens: np.asarray(tokens == stop))
    emitted = [result.tokens[:n, b].tolist() for b, n in enumerate(result.emitted)]
    return emitted, [result.path[:n, b].tolist() for b, n in enumerate(result.emitted)], asked


TREE = [(5, -1), (7, 0), (6, -1), (8, 2), (9, 1)]


@pytest.mark.parametrize(("says", "limits", "emitted", "path"), table(__file__, "walks"))
def test_a_row_walks_down_what_was_drafted_within_its_limits(says, limits, emitted, path):
    assert walk(draft_trees(TREE), [says], **limits)[:2] == ([emitted], [path])


def test_rows_walk_their_own_trees_node_by_node_and_a_token_beyond_them_matches_nothing():
    assert walk(draft_trees(TREE), [[6, 8, 1]])[2] == [[0], [3], [4]]
    assert walk(DraftBatch.empty(2), [[4], [3]])[:2] == ([[4], [3]], [[-1], [-1]])
    draft = draft_trees(TREE, [], [(6, -1)], [(5, -1), (5, 0), (5, 1)])
    assert verify.root(draft).tolist() == [0, 6, 7, 9]
    emitted, path, _ = walk(draft, [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]])
    assert emitted == [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]]
    assert path == [[0, 1, 4, -1], [-1], [0, -1], [0, 1, -1]]
    draft = draft_trees([(0, -1), (1, 0)])
    for token in range(2, 8):
        assert walk(draft, [[token, 0]])[0] == [[token]]


@st.composite
def distributions(draw, kept=False):
    """Draw two distributions over few tokens, some impossible; with ``kept``, the second lacks its tail."""
    size = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p, q = rng.dirichlet(np.full(size, 0.5), size=2)
    p[rng.random(size) < 0.2] = 0.0
    p = p / p.sum() if p.sum() else np.eye(size)[0]
    if kept:
        q[np.argsort(-q)[draw(st.integers(0, size)) :]] = 0.0
    return p, q


def test_an_impossible_token_never_stays_a_certain_one_always_and_the_rest_follows_a_rejection():
    coins = np.array([np.nextafter(0, 1), 0.5, np.nextafter(1, 0)])
    assert not verify.point_mass_accept(np.zeros(3), coins).any()
    assert verify.point_mass_accept(np.ones(3), coins).all()
    assert not verify.ratio_accept(np.zeros(3), np.full(3, 0.5), coins).any()
    assert not verify.ratio_accept(np.full(3, 0.5), np.zeros(3), coins, lenience=9.0).any()
    assert verify.ratio_accept(np.full(3, 0.5), np.full(3, 0.5), coins).all()
    assert verify.ratio_accept(np.array(0.25), np.array(0.5), np.array(0.5)) == np.False_
    assert verify.ratio_accept(np.array(0.25), np.array(0.5), np.nextafter(0.5, 0)) == np.True_
    p = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert verify.without(p, np.array([0, 0])).tolist() == [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]
    assert verify.without(p, np.array([1, 1]))[1].tolist() == [0.0, 1.0, 0.0], "no coin rejects a certain token"
    assert verify.prefix(np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], bool)).tolist() == [2, 0, 4]
    assert verify.prefix(np.zeros((2, 0), bool)).tolist() == [0, 0]


@given(distributions(kept=True), st.floats(0.2, 1.0))
def test_kept_and_redrawn_mass_add_up_to_the_policy(pair, lenience):
    p, q = pair
    kept = np.minimum(p, q)
    assert kept + (1 - kept.sum()) * verify.residual(p, q) == pytest.approx(p, abs=1e-12)
    assert verify.behaviour(p, q, lenience) == pytest.approx(p, abs=1e-12)


@given(distributions(), st.floats(1.0, 5.0))
def test_lenience_stays_within_its_bound_and_no_residual_does_better(pair, lenience):
    p, q = pair
    b = verify.behaviour(p, q, lenience)
    assert b.sum() == pytest.approx(1)
    kept = np.minimum(q, lenience * p)
    bias = np.abs(b - p).sum() / 2
    assert bias <= min(np.abs(p - q).sum() / 2, (1 - 1 / lenience) * kept.sum()) + 1e-12
    for token in range(len(p)):
        other = kept + (1 - kept.sum()) * (np.arange(len(p)) == token)
        assert bias <= np.abs(other - p).sum() / 2 + 1e-12


def test_lenience_is_biased_where_it_keeps_more():
    p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
    assert verify.behaviour(p, q, 1.5) == pytest.approx([0.75, 0.25])
    assert verify.residual(p, q, 1.5) == pytest.approx(verify.residual(p, q))


def test_a_race_never_says_an_impossible_token_and_takes_many_rows():
    p = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    won = verify.race(p, exponential(np.arange(200)[:, None, None], np.int64(0), np.arange(3)))
    assert (won.shape, set(won[:, 0]), set(won[:, 1])) == ((200, 2), {1}, {0, 2})
