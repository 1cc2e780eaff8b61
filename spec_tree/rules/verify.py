"""Verification of drafted tokens: the reference rules for every engine.

``p`` is the policy's distribution at a position, after all transforms (see ``transforms``). ``q`` is the
distribution that a stored token was drawn from, after the transforms of that time. The rules:

- ``sample_then_match``: the policy samples each token, and the draft only saves forward passes. The draft is a tree
  with distinct siblings, computed deterministically from earlier tokens. Exact given the policy (level A).
- ``point_mass_chain``: the same distribution for a chain; coins (uniform numbers in (0, 1)) accept or reject.
- ``race``: sample by exponential clocks (the token with the smallest E / p wins). A stored turn sampled with the same
  clocks is a draft that is mostly accepted (seeded replay). The output equals plain decoding, token for token: level B
  if the policy was not trained on the stored turn, else C (exact only on average over policies).
- ``ratio_chain``: verifies a stored turn whose ``q`` is known. Level B or C as for ``race``, if the coins are fresh,
  the turn is used once, and the choice of the turn ignores its reward.
- ``ratio_chain`` with a lenience above 1: biased by design (level D); ``behaviour`` is the emitted distribution.

Nothing here is random: callers pass noise and coins as arrays. Not covered: running the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.draft import DraftBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: ``draw(rows, nodes, depth)``: sample one token per row after the tokens at ``nodes`` (indices as in ``root``); return
#: tokens and log-probabilities. ``depth`` tokens were drawn earlier in this step.
Draw = Callable[[Ints, Ints, int], tuple[Ints, Floats]]


class Verified(NamedTuple):
    """Tokens emitted by a step, by depth and row; -1 where a row had stopped."""

    tokens: Ints  #: shape (depths, rows)
    logprobs: Floats  #: shape (depths, rows)
    path: Ints  #: index, in the row's draft, of the node that the token matched, -1 if none, shape (depths, rows)
    emitted: Ints  #: number of tokens of each row, shape (rows,)


def root(draft: DraftBatch) -> Ints:
    """Return the index of each row's last token if each row's nodes follow that token, shape (rows,).

    Node ``j`` of row ``b`` has index ``root[b] + 1 + j``.
    """
    return np.arange(draft.rows) + draft.offsets[:-1]


def sample_then_match(
    draft: DraftBatch, draw: Draw, token_limits: Ints, stops: Callable[[Ints, Ints], Flags]
) -> Verified:
    """Walk every row of a batch down its tree: sample, then match.

    The policy draws x after the last token. If x is a drafted child, the logits after x are already computed: go down
    to x and draw again. Otherwise, and at a leaf, x is the last token of the step. A draw continues with probability
    p(children), the highest acceptance of any exact rule for a fixed set of children (speculative sampling with a
    point-mass draft, Leviathan et al., arXiv 2211.17192, section 2.3 with q = 1; SRT, arXiv 2601.09083).

    Args:
        token_limits: Tokens that each row may still emit, at least 1, shape (rows,).
        stops: ``stops(rows, tokens)``: return for each token whether it ends its row.
    """
    rows = draft.rows
    # Siblings are distinct, so (parent, token) identifies a node: one sorted key array finds the child of any draw.
    counts = np.diff(draft.offsets)
    node_row = np.repeat(np.arange(rows), counts)
    at = root(draft)
    above = at[node_row] + 1 + draft.parents
    width = int(draft.tokens.max(initial=0)) + 1
    keys = above * width + draft.tokens
    order = np.argsort(keys)
    keys = keys[order]

    alive = np.arange(rows)
    here = at.copy()
    tokens: list[Ints] = []
    logprobs: list[Floats] = []
    path: list[Ints] = []
    emitted = np.zeros(rows, np.int64)
    depth = 0
    while len(alive):
        drawn, lps = draw(alive, here[alive], depth)
        depth += 1
        emitted[alive] = depth
        # A token of ``width`` or more would get the key of another node, hence ``drawn < width``.
        wanted = here[alive] * width + drawn
        found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        hit = (keys[found] == wanted) & (drawn < width) if len(keys) else np.zeros(len(alive), bool)
        node = np.where(hit, order[found] if len(keys) else 0, 0)
        _append(tokens, rows, alive, drawn)
        _append(logprobs, rows, alive, lps)
        _append(path, rows, alive, np.where(hit, node - draft.offsets[alive], -1))
        on = hit & (depth < token_limits[alive])
        on[on] = ~stops(alive[on], drawn[on])
        here[alive] = at[alive] + 1 + node - draft.offsets[alive]
        alive = alive[on]
    return Verified(np.stack(tokens), np.stack(logprobs), np.stack(path), emitted)


def point_mass_accept(p: Floats, coins: Floats) -> Flags:
    """Return whether a drafted token d is accepted: u < p(d); strict, so that p(d) = 0 never passes.

    ``p`` is the probability of the drafted token; ``coins``, of the same shape, are fresh and uniform in (0, 1).
    """
    accepted: Flags = coins < p
    return accepted


def without(p: Floats, drafted: Ints) -> Floats:
    """Return the distribution after a rejection of ``drafted``: p with p(d) = 0, renormalised.

    p(d) 1[x = d] + (1 - p(d)) p(x) 1[x != d] / (1 - p(d)) = p(x). Shapes (..., vocabulary) and (...).
    """
    rest = np.where(np.arange(p.shape[-1]) == np.asarray(drafted)[..., None], 0.0, p)
    return _normalised(rest, otherwise=p)


def race(p: Floats, noise: Floats) -> Ints:
    """Return the token whose clock rings first: argmin E / p = argmax log p + g, with Gumbel noise g = -log E.

    With independent standard exponentials E (``noise.exponential``), the token is a draw from p; p = 0 never wins.
    ``p`` need not be normalised. Two distributions that share their clocks draw the same token with probability at
    least (1 - D) / (1 + D), D their total variation (Gumbel coupling; Daliri et al., arXiv 2408.07978).
    """
    with np.errstate(divide="ignore", over="ignore"):
        times = np.asarray(noise, np.float64) / np.asarray(p, np.float64)
    winners: Ints = times.argmin(-1)
    return winners


def ratio_accept(p: Floats, q: Floats, coins: Floats, lenience: float = 1.0) -> Flags:
    """Return whether a token drawn from q is accepted: u < l p / q, with u its coin and l the lenience.

    Leviathan et al., arXiv 2211.17192, section 2.3; the lenience l is SPEC-RL's, arXiv 2509.23232, there e**bias.

    Args:
        p: Probability of the drafted token under the policy, any shape.
        q: Its probability when it was drawn. 0 means that the probability was not stored, which rejects the token.
        coins: Uniform in (0, 1), fresh.
        lenience: 1 is exact; above 1 accepts more tokens and is biased.
    """
    accepted: Flags = (q > 0) & (coins * q < lenience * p)
    return accepted


def residual(p: Floats, q: Floats, lenience: float = 1.0) -> Floats:
    """Return the distribution after a rejection by ``ratio_accept``: (p - min(q, l p))+, renormalised.

    For l = 1 this is (p - q)+ / D, with D the total variation of p and q. For l > 1, no other distribution gives a
    smaller bias at this acceptance. ``q`` may be partial, with 0 where the probability was not stored (all but the
    top K). Tokens drawn there are rejected, and the rule stays exact: min(p, q) + (p - q)+ = p.
    Shapes (..., vocabulary). Returns p where nothing is ever rejected.
    """
    return _normalised(np.maximum(p - np.minimum(q, lenience * p), 0.0), otherwise=p)


def behaviour(p: Floats, q: Floats, lenience: float = 1.0) -> Floats:
    """Return the distribution of the token that the ratio rule emits at a position that it reaches.

    b = min(q, l p) + (1 - A) residual, A = sum min(q, l p). For l <= 1, b = p. For l > 1, the distance of b
    to p is sum (min(q, l p) - p)+, at most min(D, (l - 1) A / l). After the first rejection, the policy samples.
    Shapes (..., vocabulary).
    """
    kept = np.minimum(q, lenience * p)
    emitted: Floats = kept + (1 - kept.sum(-1, keepdims=True)) * residual(p, q, lenience)
    return emitted


def prefix(accepted: Flags) -> Ints:
    """Return the number of flags before the first rejection, shape (...) for flags of shape (..., tokens)."""
    lengths: Ints = np.logical_and.accumulate(accepted, axis=-1).sum(-1)
    return lengths


def point_mass_chain(p: Floats, drafted: Ints, coins: Floats, draw: Callable[[Floats], int]) -> list[int]:
    """Return the tokens that a step emits for a drafted chain: the accepted tokens and one more.

    ``p`` has the policy's distributions along the draft and after it, shape (tokens + 1, vocabulary). ``draw`` draws
    from a distribution of shape (vocabulary,); ``coins`` are fresh and uniform in (0, 1).
    """
    length = len(drafted)
    kept = int(prefix(point_mass_accept(p[np.arange(length), drafted], coins)))
    last = p[kept] if kept == length else without(p[kept], drafted[kept])
    return [*drafted[:kept].tolist(), draw(last)]


def ratio_chain(
    p: Floats, q: Floats, drafted: Ints, coins: Floats, draw: Callable[[Floats], int], *, lenience: float = 1.0
) -> list[int]:
    """Return the tokens that a step emits for a chain drawn from ``q``: the accepted tokens and one more.

    Other arguments are as in ``point_mass_chain``. ``q`` holds the distributions that the tokens were drawn from,
    shape (tokens, vocabulary), and may be partial as in ``residual``.
    """
    length = len(drafted)
    at = np.arange(length)
    kept = int(prefix(ratio_accept(p[at, drafted], q[at, drafted], coins, lenience)))
    last = p[kept] if kept == length else residual(p[kept], q[kept], lenience)
    return [*drafted[:kept].tolist(), draw(last)]


def _normalised(weights: Floats, *, otherwise: Floats) -> Floats:
    # return ``otherwise`` where all weights are 0: no coin rejects there, so the values are never used
    total = weights.sum(-1, keepdims=True)
    probabilities: Floats = np.where(total > 0, weights / np.where(total > 0, total, 1.0), otherwise)
    return probabilities


def _append(levels: list[NDArray], rows: int, alive: Ints, values: NDArray) -> None:  # type: ignore[type-arg]
    level = np.full(rows, -1, values.dtype)
    level[alive] = values
    levels.append(level)
