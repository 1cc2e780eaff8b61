from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from laws.enumeration import Choose, Floats, Tokens, outcomes

Law = dict[Tokens, float]
#: from the tokens so far to the distribution of the next token, shape (vocabulary,)
Policy = Callable[[Tokens], Floats]


def policy(seed: int, vocabulary: int) -> Policy:
    """Return a random policy that depends on the whole prefix; a tenth of the tokens are impossible."""

    @cache
    def law(context: Tokens) -> Floats:
        rng = np.random.default_rng([seed, len(context), *context])
        p = rng.dirichlet(np.full(vocabulary, 0.8))
        p[(rng.random(vocabulary) < 0.1) & (p < p.max())] = 0.0
        return p / p.sum()

    return law


def near(base: Policy, seed: int, drift: float = 0.7) -> Policy:
    """Return ``base`` after some training."""

    @cache
    def law(context: Tokens) -> Floats:
        rng = np.random.default_rng([seed, len(context), *context])
        p = base(context) * np.exp(rng.normal(0, drift, len(base(context))))
        return p / p.sum()

    return law


def finish(choose: Choose, p: Policy, tokens: Tokens, length: int) -> Tokens:
    """Decode plainly up to ``length`` tokens."""
    while len(tokens) < length:
        tokens += (choose(p(tokens)),)
    return tokens


def plain(p: Policy, length: int) -> Law:
    return outcomes(lambda choose: finish(choose, p, (), length))


def along(p: Policy, tokens: Tokens, count: int) -> Floats:
    """Return the distributions before each of ``tokens`` and after the last, the first ``count`` of them."""
    return np.stack([p(tokens[:index]) for index in range(count)])


def after(p: Policy, context: Tokens) -> Policy:
    return lambda tokens: p(context + tokens)


def product(one: Law, other: Law) -> Law:
    return {a + b: w * v for a, w in one.items() for b, v in other.items()}
