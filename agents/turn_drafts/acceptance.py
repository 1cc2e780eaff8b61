"""Acceptance of a stored turn's tokens, computed from one scoring pass.

The rule is that of speculative sampling: accept a token with probability min(1, p / q), and draw the token at the first
rejected position from the residual max(p - q, 0). Here p is the current policy's distribution and q the old one, of
which only the most probable tokens are recorded (``rules.top_k``). Coins are uniform random numbers in (0, 1).
A lenient rule multiplies p / q by a factor above 1 (``lenience``): it accepts more tokens and is biased.
All functions are pure. ``rules.verify.ratio_chain`` is the rule for complete distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import Scores, TopLogprobs
from turntree.spec_tree.rules.ledger import StoredTurn
from turntree.spec_tree.rules.top_k import OTHER, align, known_probability
from turntree.spec_tree.rules.verify import behaviour, prefix, ratio_accept

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING = 1e-6  #: A smaller probability mass outside the recorded tokens counts as float32 rounding error.


def kept_tokens(turn: StoredTurn, offered: Ints, scores: Scores, coins: Floats, lenience: float) -> int:
    """Return how many of a stored turn's ``offered`` first tokens are accepted, by one coin for each token.

    ``lenience`` is a factor on the ratio of new to old probability; 1 is exact.
    """
    p = np.exp(np.array(scores.logprobs, np.float64))
    q = known_probability(offered, turn.top_ids[: len(offered)], turn.top_logprobs[: len(offered)])
    return int(prefix(ratio_accept(p, q, coins, lenience)))


class KnownDistribution(NamedTuple):
    """The known part of the policy's distribution at one position."""

    ids: Ints  #: most probable tokens, shape (known,)
    p: Floats  #: their probabilities, shape (known,)
    tail: float  #: total probability of all other tokens

    @classmethod
    def of(cls, top: TopLogprobs, position: int, *, whole: bool = False) -> KnownDistribution:
        p = np.exp(top.logprobs[position].astype(np.float64))
        tail = 1.0 - float(p.sum())
        return cls(top.ids[position].astype(np.int64), p, 0.0 if whole or tail < _ROUNDING else tail)


class Redraw(NamedTuple):
    """The token drawn at a rejected position, or the state of a draw that needs more of p."""

    token: int  #: token id; ``OTHER`` if the draw is open, because the coin fell on tokens whose p is unknown
    left: float = 0.0  #: with ``OTHER``: how far the coin reached into the mass of unknown tokens


def redraw_known(now: KnownDistribution, turn: StoredTurn, position: int, coin: float, lenience: float) -> Redraw:
    """Draw from the residual distribution, as far as p is known, by a fresh ``coin`` in (0, 1).

    The coin falls on one of two masses. On the residual of the known tokens, the draw is settled. On the mass that p
    has outside the known tokens, the draw stays open: this mass only bounds the residual of the unknown tokens.
    """
    rest = _rejected_mass(now, turn, position, lenience)
    reached = coin * (float(rest.sum()) + now.tail)
    if reached < rest.sum():
        return Redraw(int(now.ids[_index_at(rest, reached)]))
    if now.tail == 0.0:  # rejected by rounding alone: no token is likelier than before
        return Redraw(int(now.ids[_index_at(now.p, coin * float(now.p.sum()))]))
    return Redraw(OTHER, reached - float(rest.sum()))


def redraw_wider(
    now: KnownDistribution,
    before: KnownDistribution,
    turn: StoredTurn,
    position: int,
    left: float,
    coin: float,
    lenience: float,
) -> Redraw:
    """Continue a draw that ``redraw_known`` left open at mass ``left``, now that more of p is known.

    ``before`` and ``now`` are p as known then and now. ``left`` is uniform over the mass of the tokens unknown before.
    If it falls on the residual of a newly known token, the draw is settled. If it falls on the rest of the newly known
    mass, a new draw with ``coin`` starts (rejection sampling). Otherwise the draw stays open.
    """
    # The first coin has missed the residuals of the tokens known before, so only newly known tokens count.
    new = ~np.isin(now.ids, before.ids)
    rest, mass = np.where(new, _rejected_mass(now, turn, position, lenience), 0.0), float(now.p[new].sum())
    if left < rest.sum():
        return Redraw(int(now.ids[_index_at(rest, left)]))
    if left < mass or now.tail == 0.0:
        return redraw_known(now, turn, position, coin, lenience)
    return Redraw(OTHER, left - mass)


class Behaviour(NamedTuple):
    """The distribution that drew each token."""

    logprobs: Floats  #: of each token, shape (tokens,)
    top: TopLogprobs  #: most probable tokens, shape (tokens, k)


def behaviour_of(
    tokens: Ints, logprobs: Sequence[float], turn: StoredTurn, top: TopLogprobs, lenience: float
) -> Behaviour:
    """Return the distribution of the tokens that a lenient rule emits; an exact rule emits p itself.

    ``tokens`` are the kept tokens and, after a rejection, the token drawn there; ``logprobs`` and ``top`` are the
    policy's. The turn is stored with this distribution, however often it is reused. If p was stored instead, as if the
    current policy had drawn the tokens, the policy could drift away from its stored turns unnoticed.
    """
    count, width = len(tokens), top.ids.shape[1]
    tables = align(top.ids, top.logprobs, turn.top_ids[:count], turn.top_logprobs[:count])
    now = behaviour(tables.p, tables.q, lenience)
    # The policy scored every emitted token, so p is known even for tokens outside the recorded top tokens.
    p = np.exp(np.array(logprobs, np.float64))
    q = known_probability(tokens, turn.top_ids[:count], turn.top_logprobs[:count])
    # Accepted mass: `kept` of the emitted token, `both` of each recorded token.
    kept, both = np.minimum(q, lenience * p), np.minimum(tables.q, lenience * tables.p)
    rejected, rest = 1 - both.sum(1), np.maximum(tables.p - both, 0.0).sum(1)
    emitted = kept + np.maximum(p - kept, 0.0) * np.where(rest > 0, rejected / np.where(rest > 0, rest, 1.0), 1.0)
    named = np.where(tables.ids == OTHER, -1.0, now)  # OTHER is many tokens: never list it as a top token
    best = np.argsort(-named, axis=1, kind="stable")[:, :width]
    masses = np.maximum(np.take_along_axis(named, best, 1), 0.0)
    ids = np.take_along_axis(tables.ids, best, 1)
    return Behaviour(_log(emitted), TopLogprobs(ids=ids.astype(np.int32), logprobs=_log(masses).astype(np.float32)))


class RisenMass(NamedTuple):
    """Sums for the exactness monitor of the ratio rule: emitted tokens that are likelier under p than under q."""

    matched: int  #: positions whose token is known to be likelier under p than under q
    expected: float  #: sum over positions of m, p's probability of all tokens that are likelier under p
    variance: float  #: sum over positions of m (1 - m)


def risen_mass(tokens: Ints, turn: StoredTurn, scores: Scores) -> RisenMass:
    """Count emitted tokens with p > q; a rule with a wrong residual emits too few such tokens (``rules.monitor``)."""
    assert scores.top is not None
    count = len(tokens)
    ids = scores.top.ids[:count].astype(np.int64)
    p = np.exp(scores.top.logprobs[:count].astype(np.float64))
    matching = ids[:, :, None] == turn.top_ids[:count, None, :]
    q = (matching * np.exp(turn.top_logprobs[:count].astype(np.float64))[:, None, :]).sum(2)
    risen = p > q
    mass = np.minimum((p * risen).sum(1), 1.0)
    matched = ((ids == tokens[:, None]) & risen).any(1)
    return RisenMass(int(matched.sum()), float(mass.sum()), float((mass * (1 - mass)).sum()))


def _rejected_mass(now: KnownDistribution, turn: StoredTurn, position: int, lenience: float) -> Floats:
    # max(p - min(q, lenience * p), 0) at the known tokens: the residual distribution before normalisation.
    # A recorded row may list a token twice (padding has probability 0), so sum q by token.
    old, inverse = np.unique(turn.top_ids[position].astype(np.int64), return_inverse=True)
    masses = np.bincount(inverse, np.exp(turn.top_logprobs[position].astype(np.float64)), minlength=len(old))
    index = np.minimum(np.searchsorted(old, now.ids), len(old) - 1)
    q = np.where(old[index] == now.ids, masses[index], 0.0)
    rest: Floats = np.maximum(now.p - np.minimum(q, lenience * now.p), 0.0)
    return rest


def _index_at(masses: Floats, reached: float) -> int:
    # Rounding may put `reached` at the end of the cumulative sum: never return an index without mass.
    index = int(np.searchsorted(masses.cumsum(), reached, side="right"))
    return min(index, int(np.flatnonzero(masses)[-1]))


def _log(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logarithms: Floats = np.log(probabilities)
    return logarithms
