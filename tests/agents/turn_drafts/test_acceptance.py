import numpy as np
import pytest
from numpy.typing import NDArray
from stored_turns import stored_turn

from turntree.agents.engines.protocol import TopLogprobs
from turntree.agents.turn_drafts.acceptance import KnownDistribution, behaviour_of, redraw_known, redraw_wider
from turntree.spec_tree.rules.ledger import StoredTurn
from turntree.spec_tree.rules.top_k import OTHER
from turntree.spec_tree.rules.verify import behaviour, residual

GRID = 2000


def top(p: NDArray[np.float64], k: int) -> TopLogprobs:
    ids = np.argsort(-p, kind="stable")[:k]
    with np.errstate(divide="ignore"):
        return TopLogprobs(ids=ids[None].astype(np.int32), logprobs=np.log(p[ids])[None].astype(np.float32))


def turn(q: NDArray[np.float64], k: int, token: int = 0) -> StoredTurn:
    kept = top(q, k)
    return stored_turn([token], np.log(q[[token]]), kept.ids, kept.logprobs)


def law(p: NDArray[np.float64], k: int) -> KnownDistribution:
    return KnownDistribution.of(top(p, k), 0, whole=k == len(p))


@pytest.mark.parametrize("lenience", [1.0, 1.3])
@pytest.mark.parametrize(("known_q", "known_p"), [(6, [6]), (3, [2, 6]), (1, [3, 6]), (3, [1, 2, 4, 6])])
def test_a_rejected_position_is_drawn_from_the_residual(known_q: int, known_p: list[int], lenience: float) -> None:
    """Over a grid of the first coin; later coins matter only if a new draw starts."""
    p, q = np.random.default_rng(3).dirichlet(np.ones(6), 2)
    stored, chance = turn(q, known_q), np.random.default_rng(8)
    part = np.zeros(6)
    part[np.argsort(-q)[:known_q]] = np.sort(q)[::-1][:known_q]
    drawn = np.zeros(6)
    for coin in (np.arange(GRID) + 0.5) / GRID:
        known = law(p, known_p[0])
        redraw = redraw_known(known, stored, 0, coin, lenience)
        for width in known_p[1:]:
            if redraw.token == OTHER:
                before, known = known, law(p, width)
                redraw = redraw_wider(known, before, stored, 0, redraw.left, chance.random(), lenience)
        drawn[redraw.token] += 1
    assert np.abs(drawn / GRID - residual(p, part, lenience)).sum() / 2 < 0.02


def test_a_known_law_never_asks_for_more_and_a_token_rejected_by_a_hair_is_the_policys() -> None:
    p, q = np.random.default_rng(4).dirichlet(np.ones(6), 2)
    for coin in (0.001, 0.5, 0.999999):
        assert redraw_known(law(p, 6), turn(q, 6), 0, coin, 1.0).token != OTHER
    p, stored = np.array([0.5, 0.5, 0.0]), turn(np.array([0.5, 0.5, 1e-9]), 3)
    assert redraw_known(law(p, 3), stored, 0, 0.7, 1.0).token in (0, 1)
    assert redraw_wider(law(p, 3), law(p, 1), stored, 0, 1e-5, 0.7, 1.0).token == 1


@pytest.mark.parametrize("lenience", [1.0, 1.5])
def test_the_behaviour_of_a_token_that_nobody_knows_is_finite_and_right(lenience: float) -> None:
    p, q = np.random.default_rng(6).dirichlet(np.ones(8), 2)
    stored, tops = turn(q, 2), top(p, 3)
    part = np.zeros(8)
    part[stored.top_ids[0]] = q[stored.top_ids[0]]
    own = behaviour(p, part, lenience)
    unknown = set(range(8)) - {*tops.ids[0].tolist(), *stored.top_ids[0].tolist()}
    assert unknown
    for token in unknown:
        drawn_by = behaviour_of(np.array([token]), [float(np.log(p[token]))], stored, tops, lenience)
        assert drawn_by.logprobs[0] == pytest.approx(np.log(own[token]), abs=0.1 if lenience > 1 else 1e-5)


def test_the_recorded_behaviour_is_the_rules_own_law() -> None:
    p, q = np.random.default_rng(5).dirichlet(np.ones(6), 2)
    own = behaviour(p, q, 1.5)
    for token in range(6):
        drawn_by = behaviour_of(np.array([token]), [float(np.log(p[token]))], turn(q, 6), top(p, 6), 1.5)
        assert drawn_by.logprobs[0] == pytest.approx(np.log(own[token]), abs=1e-5)
        recorded = dict(zip(drawn_by.top.ids[0].tolist(), np.exp(drawn_by.top.logprobs[0]), strict=True))
        assert recorded == pytest.approx(dict(enumerate(own)), abs=1e-5)
