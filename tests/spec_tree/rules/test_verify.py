import itertools

import numpy as np
import pytest
from draft_trees import draft_trees
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules import verify
from turntree.spec_tree.rules.noise import exponential


def walk(draft, says, room=9, stop=-1):
    """Emitted tokens of each row, and the nodes they matched, when row ``b`` says ``says[b]``."""
    asked = []

    def draw(rows, nodes, depth):
        asked.append(nodes.tolist())
        return np.array([says[b][depth] for b in rows]), np.full(len(rows), -0.5 * depth)

    room = np.full(draft.rows, room)
    result = verify.sample_then_match(draft, draw, room, lambda _, tokens: np.asarray(tokens == stop))
    emitted = [result.tokens[:n, b].tolist() for b, n in enumerate(result.emitted)]
    return emitted, [result.path[:n, b].tolist() for b, n in enumerate(result.emitted)], asked


TREE = [(5, -1), (7, 0), (6, -1), (8, 2), (9, 1)]


@pytest.mark.parametrize(("says", "limits", "emitted", "path"), table(__file__, "walks"))
def test_a_row_walks_down_what_was_drafted_within_its_limits(says, limits, emitted, path):
    assert walk(draft_trees(TREE), [says], **limits)[:2] == ([emitted], [path])


def test_each_draw_is_from_the_distribution_after_the_node_reached():
    assert walk(draft_trees(TREE), [[6, 8, 1]])[2] == [[0], [3], [4]]


def test_an_empty_draft_emits_one_token():
    assert walk(DraftBatch.empty(2), [[4], [3]])[:2] == ([[4], [3]], [[-1], [-1]])


def test_rows_walk_their_own_trees():
    draft = draft_trees(TREE, [], [(6, -1)], [(5, -1), (5, 0), (5, 1)])
    assert verify.root(draft).tolist() == [0, 6, 7, 9]
    emitted, path, _ = walk(draft, [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]])
    assert emitted == [[5, 7, 9, 2], [6], [6, 5], [5, 5, 6]]
    assert path == [[0, 1, 4, -1], [-1], [0, -1], [0, 1, -1]]


def test_a_token_beyond_every_drafted_one_matches_nothing():
    """Keys are parent * width + token: a large token must not look like another parent's child."""
    draft = draft_trees([(0, -1), (1, 0)])
    for token in range(2, 8):
        assert walk(draft, [[token, 0]])[0] == [[token]]


def test_the_emitted_law_is_the_policys_whatever_the_tree():
    """Enumerates every outcome of four draws over three tokens: each continuation that extends what was
    emitted keeps the policy's probability, for every tree of up to three nodes."""
    law = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3))
    for tokens in itertools.product(range(3), repeat=3):
        for parents in [(-1, -1, -1), (-1, 0, 0), (-1, 0, 1), (-1, -1, 1)]:
            if len(set(zip(tokens, parents, strict=True))) < 3:
                continue
            draft = draft_trees(list(zip(tokens, parents, strict=True)))
            mass: dict[tuple[int, ...], float] = {}
            for said in itertools.product(range(3), repeat=4):
                emitted = tuple(walk(draft, [list(said)])[0][0])
                weight = np.prod([law[d % 3, said[d - 1] if d else 0, s] for d, s in enumerate(said)])
                mass[emitted] = mass.get(emitted, 0.0) + float(weight)
            for emitted, weight in mass.items():
                own = np.prod([law[d % 3, emitted[d - 1] if d else 0, s] for d, s in enumerate(emitted)])
                assert weight == pytest.approx(float(own), abs=1e-12)


@st.composite
def laws(draw, kept=False):
    """Two laws over the same few tokens, some of them impossible; with ``kept``, the second has lost its tail."""
    size = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p, q = rng.dirichlet(np.full(size, 0.5), size=2)
    p[rng.random(size) < 0.2] = 0.0
    p = p / p.sum() if p.sum() else np.eye(size)[0]
    if kept:
        q[np.argsort(-q)[draw(st.integers(0, size)) :]] = 0.0
    return p, q


def test_an_impossible_token_never_stays_and_a_certain_one_always_does():
    coins = np.array([np.nextafter(0, 1), 0.5, np.nextafter(1, 0)])
    assert not verify.point_mass_accept(np.zeros(3), coins).any()
    assert verify.point_mass_accept(np.ones(3), coins).all()
    assert not verify.ratio_accept(np.zeros(3), np.full(3, 0.5), coins).any()
    assert not verify.ratio_accept(np.full(3, 0.5), np.zeros(3), coins, lenience=9.0).any()
    assert verify.ratio_accept(np.full(3, 0.5), np.full(3, 0.5), coins).all()


def test_a_ratio_is_compared_strictly():
    assert verify.ratio_accept(np.array(0.25), np.array(0.5), np.array(0.5)) == np.False_
    assert verify.ratio_accept(np.array(0.25), np.array(0.5), np.nextafter(0.5, 0)) == np.True_


def test_what_follows_a_rejected_point_mass_is_the_rest_of_the_law():
    p = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert verify.without(p, np.array([0, 0])).tolist() == [[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]
    assert verify.without(p, np.array([1, 1]))[1].tolist() == [0.0, 1.0, 0.0], "no coin rejects a certain token"


@given(laws(kept=True))
def test_kept_and_redrawn_mass_add_up_to_the_policy(pair):
    p, q = pair
    kept = np.minimum(p, q)
    assert kept + (1 - kept.sum()) * verify.residual(p, q) == pytest.approx(p, abs=1e-12)


@given(laws(kept=True), st.floats(0.2, 1.0))
def test_a_lenience_below_1_is_exact_with_its_own_residual(pair, lenience):
    p, q = pair
    assert verify.behaviour(p, q, lenience) == pytest.approx(p, abs=1e-12)


@given(laws(), st.floats(1.0, 5.0))
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


@settings(max_examples=30)
@given(laws())
def test_laws_that_share_their_clocks_agree_as_often_as_the_coupling_promises(pair):
    p, q = pair
    distance = np.abs(p - q).sum() / 2
    noise = exponential(np.int64(1), np.arange(4000)[:, None], np.arange(len(p)))
    agreed = (verify.race(p, noise) == verify.race(q, noise)).mean()
    promised = (1 - distance) / (1 + distance)
    assert agreed >= promised - 4 * np.sqrt(0.25 / 4000)


def test_the_prefix_ends_at_the_first_rejection():
    assert verify.prefix(np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], bool)).tolist() == [2, 0, 4]
    assert verify.prefix(np.zeros((2, 0), bool)).tolist() == [0, 0]


P = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
Q = np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]])


def asked(chain, *arguments, **options):
    """What the chain emits when token 9 is drawn, and the law it is drawn from."""
    seen = []

    def draw(law):
        seen.append(law.tolist())
        return 9

    return chain(*arguments, draw, **options), seen[0]


@pytest.mark.parametrize(("coins", "emitted", "law"), table(__file__, "point_mass_chains"))
def test_a_point_mass_chain_keeps_its_prefix_and_says_one_token_more(coins, emitted, law):
    tokens, seen = asked(verify.point_mass_chain, P, np.array([0, 2]), np.array(coins))
    assert tokens == emitted
    assert seen == pytest.approx(law)


@pytest.mark.parametrize(("coins", "lenience", "emitted", "law"), table(__file__, "ratio_chains"))
def test_a_ratio_chain_draws_from_the_residual_after_a_rejection(coins, lenience, emitted, law):
    tokens, seen = asked(verify.ratio_chain, P, Q, np.array([0, 1]), np.array(coins), lenience=lenience)
    assert tokens == emitted
    assert seen == pytest.approx(law)


def test_an_empty_chain_is_plain_drawing():
    none = np.zeros(0, np.int64)
    assert asked(verify.point_mass_chain, P[:1], none, none.astype(float)) == ([9], P[0].tolist())
    assert asked(verify.ratio_chain, P[:1], Q[:0], none, none.astype(float)) == ([9], P[0].tolist())
