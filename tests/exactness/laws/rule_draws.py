"""The rules with real noise, many rollouts at once, and the chi-square test against the policy.

Each rollout has a seed; its noise and coins come from ``turntree.spec_tree.rules.noise``, its rules from
``turntree.spec_tree.rules.verify``. The policy depends on the whole prefix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.monitor import MonitorSums, surprise
from turntree.spec_tree.rules.noise import exponential, uniform
from turntree.spec_tree.rules.verify import point_mass_accept, race, ratio_accept, residual, sample_then_match, without

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: added to a rollout's seed: noise of the stored turn, coins, noise after a rejection
STORED, COINS, AGAIN = 2**40, 2**41, 2**42


class Table(NamedTuple):
    """A policy as arrays: ``laws[t][prefix]``, prefixes numbered in base ``vocabulary``."""

    laws: list[Floats]  #: shape (vocabulary**t, vocabulary) at position t

    @property
    def vocabulary(self) -> int:
        return self.laws[0].shape[1]

    @property
    def cells(self) -> Floats:
        """Probability of each whole turn, shape (vocabulary**length,)."""
        cells = np.ones(1)
        for law in self.laws:
            cells = (cells[:, None] * law).ravel()
        return cells


def table(seed: int, vocabulary: int, length: int) -> Table:
    rng = np.random.default_rng(seed)
    return Table([rng.dirichlet(np.full(vocabulary, 2.0), size=vocabulary**t) for t in range(length)])


def drifted(base: Table, seed: int, drift: float = 0.5) -> Table:
    rng = np.random.default_rng(seed)
    raised = [law * np.exp(rng.normal(0, drift, law.shape)) for law in base.laws]
    return Table([law / law.sum(-1, keepdims=True) for law in raised])


def clocked(laws: Floats, seeds: Ints, position: int) -> Ints:
    """Draw one token per rollout by the race, laws of shape (rollouts, vocabulary)."""
    return race(laws, exponential(seeds[:, None], np.int64(position), np.arange(laws.shape[1])))


def plain(p: Table, seeds: Ints) -> Ints:
    """Return the tokens of plain seeded decoding, shape (rollouts, length)."""
    code, tokens = np.zeros(len(seeds), np.int64), []
    for position, laws in enumerate(p.laws):
        tokens.append(clocked(laws[code], seeds, position))
        code = code * p.vocabulary + tokens[-1]
    return np.stack(tokens, 1)


def replay(p: Table, stored: Ints, seeds: Ints, *, keyed_by_step: bool = False) -> Ints:
    """Walk down each rollout's stored turn with its seed, then decode plainly.

    ``keyed_by_step`` (a fault): the noise depends on the position in the step, not in the turn.
    """
    rollouts, length = stored.shape
    draft = DraftBatch(
        tokens=stored.astype(np.int32).ravel(),
        parents=np.tile(np.arange(length, dtype=np.int32) - 1, rollouts),
        depths=np.tile(np.arange(length, dtype=np.int32) + 1, rollouts),
        probabilities=np.ones(stored.size, np.float32),
        offsets=np.arange(rollouts + 1) * length,
    )
    code = np.zeros(rollouts, np.int64)
    tokens = np.zeros((rollouts, length), np.int64)

    def say(rows: Ints, position: int, key: int) -> Ints:
        drawn = clocked(p.laws[position][code[rows]], seeds[rows], key)
        code[rows] = code[rows] * p.vocabulary + drawn
        tokens[rows, position] = drawn
        return drawn

    def draw(rows: Ints, nodes: Ints, depth: int) -> tuple[Ints, Floats]:
        return say(rows, depth, depth), np.zeros(len(rows))

    room = np.full(rollouts, length)
    verified = sample_then_match(draft, draw, room, lambda rows, drawn: np.zeros(len(rows), np.bool_))
    for position in range(1, length):
        rows = np.flatnonzero(verified.emitted <= position)
        say(rows, position, 0 if keyed_by_step else position)
    return tokens


def point_mass(p: Table, seeds: Ints, *, resample: bool = False) -> Ints:
    """Draft one token per position, the prefix's number modulo the vocabulary, and toss a coin for it.

    ``resample`` (a fault): the token after a rejection is drawn from p itself.
    """
    code, tokens = np.zeros(len(seeds), np.int64), []
    for position, laws in enumerate(p.laws):
        drafted, law = code % p.vocabulary, laws[code]
        chance = np.take_along_axis(law, drafted[:, None], 1)[:, 0]
        stays = point_mass_accept(chance, uniform(seeds + COINS, np.full(len(seeds), position)))
        rest = law if resample else without(law, drafted)
        tokens.append(np.where(stays, drafted, clocked(rest, seeds + AGAIN, position)))
        code = code * p.vocabulary + tokens[-1]
    return np.stack(tokens, 1)


def ratio(p: Table, q: Table, seeds: Ints, *, released: bool = False) -> Ints:
    """Apply the ratio rule to a stored turn from ``q``, then decode plainly.

    ``released`` (a fault): the token after a rejection is drawn from p itself.
    """
    stored = plain(q, seeds + STORED)
    code, tokens, live = np.zeros(len(seeds), np.int64), [], np.ones(len(seeds), np.bool_)
    for position, (new, old) in enumerate(zip(p.laws, q.laws, strict=True)):
        drafted, law, then = stored[:, position], new[code], old[code]
        pair = (np.take_along_axis(one, drafted[:, None], 1)[:, 0] for one in (law, then))
        stays = live & ratio_accept(*pair, uniform(seeds + COINS, np.full(len(seeds), position)))
        rest = np.where(live[:, None] & (not released), residual(law, then), law)
        tokens.append(np.where(stays, drafted, clocked(rest, seeds + AGAIN, position)))
        code = code * p.vocabulary + tokens[-1]
        live = stays
    return np.stack(tokens, 1)


class Scores(NamedTuple):
    """Monitor z-scores of a batch of rollouts that reused turns from ``q``."""

    entropy: float
    grew: float  #: of the tokens with p > q


def scores(p: Table, q: Table, tokens: Ints) -> Scores:
    """Apply the monitors to ``tokens``, shape (rollouts, length)."""
    code, sums = np.zeros(len(tokens), np.int64), MonitorSums()
    for position, (new, old) in enumerate(zip(p.laws, q.laws, strict=True)):
        law, grew = new[code], new[code] > old[code]
        said = tokens[:, position, None]
        chance, moments = (law * grew).sum(-1), surprise(law)
        sums += MonitorSums(
            accepted=float(np.take_along_axis(grew, said, 1).sum()),
            expected=float(chance.sum()),
            variance=float((chance * (1 - chance)).sum()),
            surprise=float(-np.log(np.take_along_axis(law, said, 1)).sum()),
            entropy=float(moments.entropy.sum()),
            entropy_variance=float(moments.variance.sum()),
        )
        code = code * p.vocabulary + tokens[:, position]
    return Scores(sums.entropy_z or 0.0, sums.acceptance_z or 0.0)


class ChiSquare(NamedTuple):
    p_value: float
    cells: int  #: after merging cells with fewer than 5 expected draws


def chi_square(tokens: Ints, law: Floats) -> ChiSquare:
    """Compare whole turns, shape (rollouts, length), with their probabilities, shape (vocabulary**length,)."""
    code = np.zeros(len(tokens), np.int64)
    vocabulary = round(len(law) ** (1 / tokens.shape[1]))
    for column in tokens.T:
        code = code * vocabulary + column
    counts, expected = np.bincount(code, minlength=len(law)).astype(np.float64), law * len(tokens)
    order = np.argsort(expected)
    small = int(np.searchsorted(expected[order], 5.0))
    while small and small < len(order) and expected[order[:small]].sum() < 5:
        small += 1
    few, rest = order[:small], order[small:]
    if small:
        counts = np.append(counts[rest], counts[few].sum())
        expected = np.append(expected[rest], expected[few].sum())
    return ChiSquare(float(stats.chisquare(counts, expected).pvalue), len(counts))


def power(draws: int, cells: int, distance: float, level: float) -> float:
    """Return a lower bound on the chance that the test at ``level`` notices a total variation ``distance``.

    Its noncentrality, draws * sum (difference**2 / expected), is at least 4 draws distance**2 (Cauchy-Schwarz).
    """
    threshold = stats.chi2.isf(level, cells - 1)
    return float(stats.ncx2.sf(threshold, cells - 1, 4 * draws * distance**2))
