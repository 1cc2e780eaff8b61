"""Enumerate every outcome of a procedure that makes random choices, with its probability.

A procedure takes ``choose(weights) -> index`` and runs once for every path through its choices. A coin becomes a choice
between the regions of (0, 1) on which the tested code decides alike (``regions``, found by bisection, so the thresholds
are the code's own). Clocks shared by two distributions become a choice of both winners (``race_joint``, integrated in
closed form and checked against the code at one point of each region).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.rules.verify import race

Floats = NDArray[np.float64]
Choose = Callable[[Sequence[float] | Floats], int]
Tokens = tuple[int, ...]
T = TypeVar("T", bound=Hashable)


def outcomes(run: Callable[[Choose], T]) -> dict[T, float]:
    """Return the distribution of the result of ``run``."""
    mass: dict[T, float] = {}
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        taken: list[int] = []
        weight = 1.0

        def choose(
            weights: Sequence[float] | Floats, script: tuple[int, ...] = script, taken: list[int] = taken
        ) -> int:
            nonlocal weight
            if len(taken) < len(script):
                pick = script[len(taken)]
            else:
                pick, *others = [index for index, w in enumerate(weights) if w > 0]
                scripts.extend((*taken, other) for other in others)
            taken.append(pick)
            weight *= float(weights[pick])
            return pick

        result = run(choose)
        mass[result] = mass.get(result, 0.0) + weight
    return mass


def tv(one: Mapping[T, float], other: Mapping[T, float]) -> float:
    """Return the total variation distance."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2


def marginal(mass: Mapping[T, float], of: Callable[[T], Hashable]) -> dict[Hashable, float]:
    """Return the distribution of a function of the outcome."""
    result: dict[Hashable, float] = {}
    for outcome, weight in mass.items():
        result[of(outcome)] = result.get(of(outcome), 0.0) + weight
    return result


class Region(NamedTuple):
    """An interval of coins with the same decision."""

    probability: float
    coin: float  #: one coin of the interval
    decision: int


def regions(decide: Callable[[Floats], NDArray[np.generic]], parts: int = 64) -> list[Region]:
    """Return the regions of (0, 1) on which ``decide`` (coins to decisions, elementwise) is constant.

    A step between two of ``parts`` coins with the same decision is missed.
    """
    edges = np.linspace(0, 1, parts + 1)
    edges[0], edges[-1] = np.nextafter(0, 1), np.nextafter(1, 0)
    steps, values = [0.0], [int(decide(edges[:1])[0])]
    open_parts = [edges]
    while open_parts:
        inside = open_parts.pop()
        decisions = decide(inside).astype(np.int64)
        changes = np.flatnonzero(decisions[1:] != decisions[:-1])
        for at in changes[::-1]:
            low, high = inside[at], inside[at + 1]
            finer = np.unique(np.linspace(low, high, parts + 1))
            if len(finer) > 2:
                open_parts.append(finer)
            else:
                steps.append(high)
                values.append(int(decisions[at + 1]))
    order = np.argsort(steps)
    bounds = [*np.array(steps)[order].tolist(), 1.0]
    return [
        Region(high - low, (low + high) / 2, values[index])
        for index, (low, high) in zip(order, itertools.pairwise(bounds), strict=True)
    ]


def toss(choose: Choose, found: Sequence[Region]) -> float:
    return found[choose([region.probability for region in found])].coin


def race_joint(q: Floats, p: Floats) -> Floats:
    """Return the probability that a wins under ``q`` and b under ``p`` in a race with the same clocks.

    For a = b the other clocks y ring after E_a max(q_y / q_a, p_y / p_a). For a != b put r = E_b / E_a, between
    q_b / q_a and p_b / p_a; the others ring after E_a max(q_y / q_a, r p_y / p_b). With c(r) the sum of these
    rates and 1 + r, the region has the volume of dr / c(r)**2, and c is linear between its corners.

    Returns:
        Shape (vocabulary, vocabulary), rows by a.
    """
    return _race_joint(tuple(q.tolist()), tuple(p.tolist()))


@cache
def _race_joint(q_key: tuple[float, ...], p_key: tuple[float, ...]) -> Floats:
    q, p = np.array(q_key), np.array(p_key)
    joint = np.zeros((len(q), len(p)))
    for a, b in itertools.product(range(len(q)), range(len(p))):
        if not q[a] or not p[b]:
            continue
        if a == b:
            corners = np.array([1.0])
        else:
            low, high = q[b] / q[a], p[b] / p[a] if p[a] else np.inf
            if low >= high:
                continue
            others = [y for y in range(len(q)) if y not in (a, b) and p[y]]
            inner = [c for c in (q[y] / q[a] * p[b] / p[y] for y in others) if low < c < high]
            corners = np.array([low, *sorted(inner), high])

        def clocks(r: float, a: int = a, b: int = b) -> Floats:
            """The earliest rings of all others when E_a = 1 and E_b = r."""
            earliest = np.maximum(q / q[a], r * p / p[b])
            earliest[[a, b]] = 1.0, r
            return earliest

        if a == b:
            joint[a, b] = 1 / clocks(1.0).sum()
            point = clocks(1.0)
        else:
            joint[a, b] = _integral(clocks, corners)
            point = clocks(_between(corners[0], corners[1]))
        point[[y for y in range(len(q)) if y not in (a, b)]] += 1e-3
        if (race(q, point), race(p, point)) != (a, b):
            raise AssertionError(f"race does not say {a} under {q} and {b} under {p} with the clocks {point}")
    return joint


def _integral(clocks: Callable[[float], Floats], corners: Floats) -> float:
    # Of dr / c(r)**2 along the corners, c(r) the sum of ``clocks(r)``; the last corner may be infinite.
    total = 0.0
    for low, high in itertools.pairwise(corners.tolist()):
        at_low = clocks(low).sum()
        if np.isinf(high):
            slope = clocks(low + 1).sum() - at_low
            total += 1 / (at_low * slope)
        else:
            total += (high - low) / (at_low * clocks(high).sum())
    return total


def _between(low: float, high: float) -> float:
    return low + 1 if np.isinf(high) else (low + high) / 2
