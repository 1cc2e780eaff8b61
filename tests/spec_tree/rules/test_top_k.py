import numpy as np
import pytest
from numpy.typing import NDArray

from turntree.spec_tree.rules.top_k import OTHER, align, known_probability
from turntree.spec_tree.rules.verify import residual

RNG = np.random.default_rng(0)


def distributions(vocabulary: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, q = RNG.dirichlet(np.full(vocabulary, 0.5), 2)
    return p, q


def top(distribution: NDArray[np.float64], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    ids = np.argsort(-distribution)[:k]
    return ids[None], np.log(distribution[ids])[None]


def emitted(p: NDArray[np.float64], q: NDArray[np.float64], part: NDArray[np.float64], known: NDArray[np.float64]):
    """Return the distribution of the emitted token: ``part`` decides acceptance, ``known`` gives the residual."""
    distribution = np.zeros_like(p)
    stays = np.minimum(1.0, np.divide(p, part, out=np.zeros_like(p), where=part > 0))
    distribution += q * stays
    return distribution + (q * (1 - stays)).sum() * residual(p, known)


def test_adding_the_drawn_tokens_own_probability_would_be_wrong() -> None:
    """Control: accept by the drawn token's q, and draw from the residual of the top 1."""
    distances = []
    for _ in range(50):
        p, q = distributions(6)
        part = np.where(q == q.max(), q, 0.0)
        assert np.abs(emitted(p, q, part, part) - p).sum() / 2 < 1e-12, "by the top 1 for both it is exact"
        distances.append(np.abs(emitted(p, q, q, part) - p).sum() / 2)
    assert np.mean(distances) > 0.02


def test_distributions_that_are_known_whole_are_aligned_without_a_draft() -> None:
    p, q = distributions(5)
    aligned = align(*top(p, 5), *top(q, 5))
    for column, token in enumerate(aligned.ids[0]):
        if token != OTHER:
            assert aligned.p[0, column] == pytest.approx(p[token])
            assert aligned.q[0, column] == pytest.approx(q[token])
    assert aligned.imputed[0] == 0
    assert aligned.p[0, -1] == pytest.approx(0, abs=1e-12)


def test_what_is_known_stays_exact_and_the_rest_of_p_is_bounded() -> None:
    for _ in range(50):
        p, q = distributions(30)
        aligned = align(*top(p, 6), *top(q, 6))
        assert aligned.p[0].sum() == pytest.approx(1)
        named = aligned.ids[0] != OTHER
        assert len(set(aligned.ids[0][named])) == named.sum()
        known = np.argsort(-p)[:6]
        for token, mass, old in zip(aligned.ids[0], aligned.p[0], aligned.q[0], strict=True):
            if token in known:
                assert mass == pytest.approx(p[token])
            elif token != OTHER:
                assert 0 <= mass <= np.sort(p)[-6] + 1e-12
            assert old == pytest.approx(q[token] if token in np.argsort(-q)[:6] and token != OTHER else 0.0)


def test_excluded_tokens_have_probability_zero_and_those_outside_the_known_ones_none() -> None:
    ids, logprobs = np.array([[3, 5], [3, 5]]), np.log(np.array([[0.5, 0.25], [0.5, 0.25]]))
    assert known_probability([5, 4], ids, logprobs).tolist() == pytest.approx([0.25, 0.0])
    assert known_probability([5], np.zeros((1, 0)), np.zeros((1, 0))).tolist() == [0.0]
    logprobs = np.array([[0.0, -np.inf]])
    aligned = align([[1, 2]], logprobs, [[1, 2]], np.log([[0.5, 0.5]]))
    assert aligned.p[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert aligned.q[0, :2].tolist() == pytest.approx([0.5, 0.5])
