"""The accepted part of a stored turn, computed from one scoring pass.

Pure functions: a stored turn, the policy's scores of its tokens and uniform
draws ("coins") in; the accepted tokens and the distribution that drew them
out. The rule is ``verify.ratio_chain``'s, with the known part of the old
distribution (see ``top_law``).
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

_ROUNDING = 1e-6
"""Probability mass beyond the recorded tokens that may be float32 rounding and belong to no token."""


def kept_tokens(turn: StoredTurn, offered: Ints, scores: Scores, coins: Floats, lenience: float) -> int:
    """Number of leading tokens of a stored turn that are accepted.

    Args:
        offered: Its first tokens, shape (offered,).
        scores: The current policy's scores of them.
        coins: Uniform in (0, 1), fresh, shape (offered,).
        lenience: 1 is exact.
    """
    p = np.exp(np.array(scores.logprobs, np.float64))
    q = known_probability(offered, turn.top_ids[: len(offered)], turn.top_logprobs[: len(offered)])
    return int(prefix(ratio_accept(p, q, coins, lenience)))


class KnownLaw(NamedTuple):
    """The policy's distribution at one position, as far as it is known."""

    ids: Ints
    """Its most probable tokens, shape (known,)."""
    p: Floats
    """Their probabilities, shape (known,)."""
    tail: float
    """Probability of all others together."""

    @classmethod
    def of(cls, top: TopLogprobs, position: int, *, whole: bool = False) -> KnownLaw:
        """The distribution at a position of scored tokens; ``whole``: no token is left out."""
        p = np.exp(top.logprobs[position].astype(np.float64))
        tail = 1.0 - float(p.sum())
        return cls(top.ids[position].astype(np.int64), p, 0.0 if whole or tail < _ROUNDING else tail)


class Redraw(NamedTuple):
    """The token drawn at a rejected position."""

    token: int
    """Its id; ``OTHER`` if the distribution is not known far enough."""
    left: float = 0.0
    """For ``OTHER``: how far the coin reached into the mass of unknown tokens, in probability."""


def redraw_known(now: KnownLaw, turn: StoredTurn, position: int, coin: float, lenience: float) -> Redraw:
    """Draw from the residual distribution as far as p is known.

    By rejection: the coin falls either on the residual of the known tokens, which settles the draw, or on the
    mass that p has beyond them, which is more than their residual.

    Args:
        now: p at the position.
        coin: Uniform in (0, 1), fresh.
    """
    rest = _rejected_mass(now, turn, position, lenience)
    reached = coin * (float(rest.sum()) + now.tail)
    if reached < rest.sum():
        return Redraw(int(now.ids[_place(rest, reached)]))
    if now.tail == 0.0:  # rejected by rounding alone: no token is likelier than it was
        return Redraw(int(now.ids[_place(now.p, coin * float(now.p.sum()))]))
    return Redraw(OTHER, reached - float(rest.sum()))


def redraw_wider(
    now: KnownLaw, before: KnownLaw, turn: StoredTurn, position: int, left: float, coin: float, lenience: float
) -> Redraw:
    """Go on with a draw that was left open, now that more of p is known.

    The first coin, uniform over the mass of what was unknown, falls on the residual of the tokens that are known now,
    which settles the draw; on the rest of their mass, and then all is drawn anew; or beyond them once more.

    Args:
        now: p at the position.
        left: As ``Redraw.left``.
        before: What was known of it when the draw was left open.
        coin: Uniform in (0, 1), fresh.
    """
    new = ~np.isin(now.ids, before.ids)
    rest, mass = np.where(new, _rejected_mass(now, turn, position, lenience), 0.0), float(now.p[new].sum())
    if left < rest.sum():
        return Redraw(int(now.ids[_place(rest, left)]))
    if left < mass or now.tail == 0.0:
        return redraw_known(now, turn, position, coin, lenience)
    return Redraw(OTHER, left - mass)


class Behaviour(NamedTuple):
    """The distribution that drew each token."""

    logprobs: Floats
    """Log-probability of each token, shape (tokens,)."""
    top: TopLogprobs
    """Its most probable tokens, shape (tokens, k)."""


def behaviour_of(
    tokens: Ints, logprobs: Sequence[float], turn: StoredTurn, top: TopLogprobs, lenience: float
) -> Behaviour:
    """The distribution of what a lenient rule emits at the first positions; an exact rule emits p itself.

    It stays attached to the token, however often the turn is used: storing p instead, as if the current policy had
    drawn the token, would let the policy drift away from its stored turns unnoticed.

    Args:
        tokens: The emitted tokens: those kept and, after a rejection, the one drawn there, shape (tokens,).
        logprobs: Their log-probabilities under the policy, shape (tokens,).
        top: The policy's most probable tokens at the positions of ``tokens``, shape (tokens, k).
    """
    count, width = len(tokens), top.ids.shape[1]
    tables = align(top.ids, top.logprobs, turn.top_ids[:count], turn.top_logprobs[:count])
    now = behaviour(tables.p, tables.q, lenience)
    # Of the tokens themselves p is known, even where they are not among the most probable ones.
    p, q = (
        np.exp(np.array(logprobs, np.float64)),
        known_probability(tokens, turn.top_ids[:count], turn.top_logprobs[:count]),
    )
    kept, both = np.minimum(q, lenience * p), np.minimum(tables.q, lenience * tables.p)
    rejected, rest = 1 - both.sum(1), np.maximum(tables.p - both, 0.0).sum(1)
    own = kept + np.maximum(p - kept, 0.0) * np.where(rest > 0, rejected / np.where(rest > 0, rest, 1.0), 1.0)
    named = np.where(tables.ids == OTHER, -1.0, now)
    best = np.argsort(-named, axis=1, kind="stable")[:, :width]
    masses = np.maximum(np.take_along_axis(named, best, 1), 0.0)
    ids = np.take_along_axis(tables.ids, best, 1)
    return Behaviour(_log(own), TopLogprobs(ids=ids.astype(np.int32), logprobs=_log(masses).astype(np.float32)))


class RisenMass(NamedTuple):
    """Monitor sums for a rule that may have lost its residual: emitted tokens that are likelier than before."""

    matched: int
    """Positions whose token is among those known to be likelier under p than under q."""
    expected: float
    """Sum of p's mass on those tokens."""
    variance: float
    """Sum of m (1 - m), m being that mass."""


def risen_mass(tokens: Ints, turn: StoredTurn, scores: Scores) -> RisenMass:
    """Count emitted tokens with p > q (``monitor``: a rule without the right residual emits too few of them).

    Args:
        tokens: The emitted tokens at the tested positions, shape (tested,).
        scores: The scoring pass that it was verified again from.
    """
    assert scores.top is not None
    count = len(tokens)
    ids = scores.top.ids[:count].astype(np.int64)
    p = np.exp(scores.top.logprobs[:count].astype(np.float64))
    same = ids[:, :, None] == turn.top_ids[:count, None, :]
    q = (same * np.exp(turn.top_logprobs[:count].astype(np.float64))[:, None, :]).sum(2)
    risen = p > q
    mass = np.minimum((p * risen).sum(1), 1.0)
    matched = ((ids == tokens[:, None]) & risen).any(1)
    return RisenMass(int(matched.sum()), float(mass.sum()), float((mass * (1 - mass)).sum()))


def _rejected_mass(now: KnownLaw, turn: StoredTurn, position: int, lenience: float) -> Floats:
    """(p - min(q, l p))+ at the known tokens: the residual distribution before it is normalised."""
    old, inverse = np.unique(turn.top_ids[position].astype(np.int64), return_inverse=True)
    masses = np.bincount(inverse, np.exp(turn.top_logprobs[position].astype(np.float64)), minlength=len(old))
    place = np.minimum(np.searchsorted(old, now.ids), len(old) - 1)
    q = np.where(old[place] == now.ids, masses[place], 0.0)
    rest: Floats = np.maximum(now.p - np.minimum(q, lenience * now.p), 0.0)
    return rest


def _place(masses: Floats, reached: float) -> int:
    """Index at which the cumulative mass passes ``reached``; never one without mass."""
    place = int(np.searchsorted(masses.cumsum(), reached, side="right"))
    return min(place, int(np.flatnonzero(masses)[-1]))


def _log(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logarithms: Floats = np.log(probabilities)
    return logarithms
