"""An engine that only counts: seconds from a formula, accepted drafts from coin tosses."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turntree.spec_tree.budget.draft_budget import Allowance


@dataclass(frozen=True)
class Fixed:
    """A constant threshold; above 1 nothing is drafted."""

    threshold: float

    def allow(self, rows: int) -> Allowance:
        return Allowance(self.threshold, 1 << 30 if self.threshold <= 1 else 0)

    def observe(self, **_) -> None:
        pass


@dataclass(frozen=True)
class Policy:
    sure: tuple[float, float] = (6.0, 1.0)  #: Beta parameters of the store's probability estimates
    truth: Callable[[np.ndarray], np.ndarray] = lambda estimate: estimate  #: fraction of the estimates that come true


SHARP, FLAT = Policy(), Policy((1.0, 6.0))


def simulate(chooser, seconds, policy=SHARP, *, rows=16, steps=1000, depth=8, noise=0.0, hiccups=0.0, seed=0):
    """Return tokens, seconds and drafts of each step, shape (steps, 3); ``chooser`` acts as a budget.

    Batches of ``rows`` requests run for 60 steps, half of which lose requests one by one. Offers and outcomes depend on
    seed and step alone, so two choosers see the same luck.
    """
    out = np.zeros((steps, 3))
    for step in range(steps):
        rng = np.random.default_rng((seed, step))
        now = policy(step) if callable(policy) else policy
        live = max(1, round(rows * min(1.0, (60 - step % 60) / 30)))
        estimates = rng.beta(*now.sure, (live, depth))
        right = np.cumprod(rng.random((live, depth)) < now.truth(estimates), 1).astype(bool)
        paths = np.cumprod(estimates, 1)
        jitter, hiccup = float(np.exp(noise * rng.standard_normal())), rng.random() < hiccups
        allowed = chooser.allow(live)
        taken = paths >= allowed.min_probability
        if taken.sum() > allowed.nodes:
            worst = np.argsort(-np.where(taken, paths, -1).ravel(), kind="stable")[allowed.nodes :]
            taken.ravel()[worst] = False
        drafts = int(taken.sum())
        emitted = live + int((right & taken).sum())
        lasted = seconds(live, live + drafts) * jitter
        out[step] = emitted, lasted, drafts
        chooser.observe(
            rows=live, tokens=live + drafts, estimates=paths[taken].astype(np.float32),
            accepted=right[taken], seconds=lasted * (10 if hiccup else 1),
        )  # fmt: skip
    return out


def throughput(run: np.ndarray, begin: int = 0, end: int | None = None) -> float:
    return float(run[begin:end, 0].sum() / run[begin:end, 1].sum())
