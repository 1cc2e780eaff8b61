"""The exact distribution of turns made from a stored turn: the ratio rule, lenience and seeded replay.

The tested code is ``turntree.spec_tree.rules.verify``; only the choices around it are enumerated. ``broken`` names a
fault: the control, which a proof must notice.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from numpy.typing import NDArray

from laws.enumeration import Choose, Floats, Region, Tokens, outcomes, race_joint, regions, toss
from laws.point_mass import chain_of, point_mass_coin, walk
from laws.policies import Law, Policy, along, finish, near
from turntree.spec_tree.rules.verify import behaviour, point_mass_chain, prefix, ratio_accept, ratio_chain, residual


@cache
def ratio_coin(p: float, q: float, lenience: float) -> list[Region]:
    return regions(lambda coins: ratio_accept(np.full(coins.shape, p), np.full(coins.shape, q), coins, lenience))


def ratio_law(
    p: Policy, q: Policy, length: int, *, lenience: float = 1.0, top: int | None = None, broken: str = ""
) -> Law:
    """Verify a stored turn from ``q`` and continue it.

    ``top``: only the probabilities of the ``top`` most probable tokens were kept. Faults: ``released`` draws from p
    after a rejection (SPEC-RL's released code), ``threshold`` tests u < 0.7 p / q with the residual of u < p / q,
    ``stale`` uses another q than the turn's, and ``greedy`` takes the residual's most probable token.
    """
    recorded = near(q, 91) if broken == "stale" else q

    def run(choose: Choose) -> Tokens:
        stored = finish(choose, q, (), length)
        return reuse(choose, p, recorded, stored, lenience=lenience, top=top, broken=broken)

    return outcomes(run)


def reuse(
    choose: Choose,
    p: Policy,
    q: Policy,
    stored: Tokens,
    *,
    lenience: float = 1.0,
    top: int | None = None,
    broken: str = "",
) -> Tokens:
    length, tokens, at = len(stored), np.array(stored), np.arange(len(stored))
    old, new = along(q, stored, length), along(p, stored, length + 1)
    if top is not None:
        old = np.where(np.argsort(np.argsort(-old, axis=-1), axis=-1) < top, old, 0.0)
    threshold = 0.7 if broken == "threshold" else lenience
    pairs = zip(new[at, tokens].tolist(), old[at, tokens].tolist(), strict=True)
    coins = np.array([toss(choose, ratio_coin(a, b, threshold)) for a, b in pairs])
    if broken not in ("released", "threshold", "greedy"):
        emitted = ratio_chain(new, old, tokens, coins, choose, lenience=lenience)
        return finish(choose, p, tuple(emitted)[:length], length)
    kept = int(prefix(ratio_accept(new[at, tokens], old[at, tokens], coins, threshold)))
    if kept == length:
        return stored
    rest = new[kept] if broken == "released" else residual(new[kept], old[kept])
    last = int(rest.argmax()) if broken == "greedy" else choose(rest)
    return finish(choose, p, (*stored[:kept], last), length)


def lenient_formula(p: Policy, q: Policy, length: int, lenience: float) -> Law:
    """Return ``ratio_law`` by ``behaviour``'s formula: the policy is mixed in from the first rejection on."""

    def run(choose: Choose) -> Tokens:
        tokens: Tokens = ()
        while len(tokens) < length:
            new, old = p(tokens), q(tokens)
            emitted = behaviour(new, old, lenience)
            token = choose(emitted)
            tokens += (token,)
            stays = min(float(old[token]), lenience * float(new[token])) / float(emitted[token])
            if choose([stays, max(0.0, 1 - stays)]):
                return finish(choose, p, tokens, length)
        return tokens

    return outcomes(run)


def picked_law(p: Floats, q: Floats, order: Tokens, blind: bool) -> Law:
    """Reuse one token by the ratio rule; the draft is the better of two draws in ``order``, or the first."""

    def run(choose: Choose) -> Tokens:
        draws = choose(q), choose(q)
        drafted = draws[0] if blind else min(draws, key=order.index)
        coin = toss(choose, ratio_coin(float(p[drafted]), float(q[drafted]), 1.0))
        return tuple(ratio_chain(np.stack([p, p]), q[None], np.array([drafted]), np.array([coin]), choose)[:1])

    return outcomes(run)


def epochs_law(laws: list[Floats], fixed: bool) -> Law:
    """Reuse one token epoch after epoch, each time with that epoch's policy; return the last epoch's distribution.

    Args:
        laws: The policies' distributions.
        fixed: Use the same coin in every epoch.
    """

    new, old = np.stack(laws[1:]).ravel(), np.stack(laws[:-1]).ravel()
    bits = np.arange(len(new))

    def decisions(coins: Floats) -> NDArray[np.int64]:
        # The decisions on all tokens in all epochs as one number.
        return (ratio_accept(new[:, None], old[:, None], coins) << bits[:, None]).sum(0)

    shared = regions(decisions)

    def run(choose: Choose) -> Tokens:
        coin = toss(choose, shared) if fixed else 0.0
        token = choose(laws[0])
        for q, p in itertools.pairwise(laws):
            if not fixed:
                coin = toss(choose, ratio_coin(float(p[token]), float(q[token]), 1.0))
            token = ratio_chain(np.stack([p, p]), q[None], np.array([token]), np.array([coin]), choose)[0]
        return (token,)

    return outcomes(run)


def two_uses_law(p: Policy, q: Policy, length: int, stored_turns: int) -> Law:
    """Return the joint distribution of two new turns from one stored turn, used twice, or from two."""

    def run(choose: Choose) -> Tokens:
        stored = [finish(choose, q, (), length) for _ in range(stored_turns)]
        return reuse(choose, p, q, stored[0]) + reuse(choose, p, q, stored[-1])

    return outcomes(run)


def replay_law(p: Policy, q: Policy, length: int) -> Law:
    """Return the joint distribution of a stored turn from ``q`` and its replay under ``p``, as one tuple."""

    def run(choose: Choose) -> Tokens:
        old: Tokens = ()
        new: Tokens = ()
        for _ in range(length):
            joint = race_joint(q(old), p(new))
            pair = choose(joint.ravel())
            old, new = (*old, pair // joint.shape[1]), (*new, pair % joint.shape[1])
        replayed = walk(chain_of(old), length, lambda path: new[len(path)])
        if replayed != new[: len(replayed)]:
            raise AssertionError(f"replay says {replayed}, plain decoding {new}")
        return old + new

    return outcomes(run)


def trained(p: Floats, token: int, gain: float) -> Floats:
    return (1 - gain) * p + gain * (np.arange(len(p)) == token)


def trained_law(p: Floats, q: Floats, gain: float, rule: str) -> tuple[Law, Law]:
    """Return the joint distribution of a stored token and a new one by a policy trained on it, and the claim.

    The claim: the new token is drawn from the trained policy, independently of the stored token's noise.
    """

    def run(choose: Choose) -> Tokens:
        old = choose(q)
        new = trained(p, old, gain)
        if rule == "replay":
            return old, choose(race_joint(q, new)[old] / q[old])
        if rule == "ratio":
            coin = toss(choose, ratio_coin(float(new[old]), float(q[old]), 1.0))
            emitted = ratio_chain(np.stack([new, new]), q[None], np.array([old]), np.array([coin]), choose)
        else:
            coin = toss(choose, point_mass_coin(float(new[old])))
            emitted = point_mass_chain(np.stack([new, new]), np.array([old]), np.array([coin]), choose)
        return old, emitted[0]

    claimed = outcomes(lambda choose: ((old := choose(q)), choose(trained(p, old, gain))))
    return outcomes(run), claimed
