"""What ``store.py`` measures, one function a figure. Nothing here prints."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from drafting.drafters import DRAFTERS, TIMED, Drafter, Setup, Turntree
from drafting.replay import Clock, Replay, replay
from drafting.traces import Trace, Turn
from turntree.agents.engines.drafting.step_bound import draft_length
from turntree.spec_tree import DraftBatch, SpecForest

LENGTHS: dict[str, Callable[[int], int]] = {
    "8": lambda rows: 8,
    "16": lambda rows: 16,
    "32": lambda rows: 32,
    "rule": lambda rows: draft_length(rows, 32),
}
"""Greatest length of a draft by the number of running turns, by name."""
BINS = 20
"""Of the calibration error."""

COMPILE = """
import time
start = time.perf_counter()
import numpy as np
from drafting.drafters import Setup, Turntree
from drafting.traces import Turn
from turntree.spec_tree import DialogueState
from turntree.spec_tree.store.warm_up import warm_up
imported = time.perf_counter()
warm_up()
warm = time.perf_counter()
drafter, prompt = Turntree(Setup()), np.array([1, 2, 3], np.int32)
state = DialogueState.from_tokens([1, 2, 3], task="t", env="e")
drafter.insert([Turn(state=state, prompt=prompt, tokens=np.array([7, 8, 9], np.int32), start=0, sample=0)])
handles = drafter.begin([state], [prompt])
drafter.draft(handles, [])
drafter.forest.draft(handles, max_nodes=8, max_depths=[8], chain=True, min_probability=0.1, total_nodes=4)
drafter.commit(handles, [[7, 8, 5]], [])
drafter.end(handles)
drafter.memory()
print(imported - start, warm - imported, time.perf_counter() - imported)
"""


def geometric_mean(values: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def quality(name: str, trace: Trace, setup: Setup, *, batch: int) -> Replay:
    """Replay ``trace`` from an empty store."""
    return replay(DRAFTERS[name](setup), trace.turns, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualWork:
    """turntree held to another drafter's verification work."""

    min_probability: float
    """The threshold that does it."""
    drafted_per_forward_pass: float
    """With it; at most 1 % above the other's."""
    tokens_per_forward_pass: float
    """With it."""


def equal_work(
    trace: Trace, setup: Setup, *, batch: int, drafted_per_forward_pass: float, tries: int = 12
) -> EqualWork:
    """Find the lowest threshold at which turntree drafts no more than ``drafted_per_forward_pass`` (within 1 %)."""

    def at(threshold: float) -> EqualWork:
        found = replay(Turntree(setup, min_probability=threshold), trace.turns, batch=batch)
        return EqualWork(
            min_probability=threshold,
            drafted_per_forward_pass=found.drafted_per_forward_pass,
            tokens_per_forward_pass=found.tokens_per_forward_pass,
        )

    low, high = 0.0, 1.0
    best = at(low)
    if best.drafted_per_forward_pass <= 1.01 * drafted_per_forward_pass:
        return best
    best = at(high)
    for _ in range(tries):
        if best.drafted_per_forward_pass >= 0.99 * drafted_per_forward_pass:
            break
        middle = at((low + high) / 2)
        if middle.drafted_per_forward_pass <= 1.01 * drafted_per_forward_pass:
            best, high = middle, middle.min_probability
        else:
            low = middle.min_probability
    return best


@dataclass(slots=True, kw_only=True)
class Speed:
    """Medians over the repeats; each in wall time and CPU time of the process."""

    draft_us: tuple[float, float]
    """Microseconds a row and step in ``draft``."""
    commit_us: tuple[float, float]
    """Microseconds a token in ``commit``."""
    step_ms: tuple[float, float]
    """Milliseconds an engine step, ``draft`` and ``commit``, of all rows."""
    drafted: float
    """Tokens drafted a row and step."""


def speed(
    names: Sequence[str], trace: Trace, setup: Setup, *, batch: int, repeats: int, most_steps: int
) -> dict[str, Speed]:
    """Time full batches over the later turns of ``trace`` with the earlier ones stored; the sides take turns."""
    first = max(0, min(len(trace.turns) // 2, len(trace.turns) - batch * 5 // 4))
    stored, rest = trace.turns[:first], trace.turns[first:]
    runs: dict[str, list[Replay]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            drafter = filled(TIMED[name](setup), stored)
            runs[name].append(replay(drafter, rest, batch=batch, full=True, most_steps=most_steps))
    return {name: _speed(found) for name, found in runs.items() if all(run.steps for run in found)}


def _speed(runs: list[Replay]) -> Speed:
    def both(seconds: Callable[[Replay, str], float]) -> tuple[float, float]:
        return median(seconds(run, "wall") for run in runs), median(seconds(run, "cpu") for run in runs)

    return Speed(
        draft_us=both(lambda run, kind: getattr(run.draft, kind) / run.steps * 1e6),
        commit_us=both(lambda run, kind: getattr(run.commit, kind) / run.emitted * 1e6),
        step_ms=both(lambda run, kind: (getattr(run.draft, kind) + getattr(run.commit, kind)) / run.rounds * 1e3),
        drafted=runs[0].drafted_per_forward_pass,
    )


def filled(drafter: Drafter, turns: Iterable[Turn]) -> Drafter:
    """``drafter`` after so many finished turns."""
    drafter.insert(list(turns))
    return drafter


def insertion(names: Sequence[str], trace: Trace, setup: Setup, *, repeats: int) -> dict[str, tuple[float, float]]:
    """Tokens a second, by wall and by CPU time, at which finished turns go in; the sides take turns."""
    clocks: dict[str, list[Clock]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            drafter, clock = DRAFTERS[name](setup), Clock()
            filled(drafter, trace.turns[:2])
            with clock.running():
                filled(drafter, trace.turns)
            clocks[name].append(clock)
    return {
        name: (trace.tokens / median(c.wall for c in found), trace.tokens / median(c.cpu for c in found))
        for name, found in clocks.items()
    }


def together(traces: Sequence[Trace]) -> Trace:
    """One trace with the turns of all."""
    return Trace(
        name="all together",
        turns=[turn for trace in traces for turn in trace.turns],
        end_tokens=frozenset().union(*(trace.end_tokens for trace in traces)),
        vocab=max(trace.vocab for trace in traces),
    )


def hot_bytes(name: str, trace: Trace, setup: Setup) -> float | None:
    """Bytes a token with all of ``trace`` stored and nothing evicted; ``None`` where the library does not tell."""
    positions = sum((len(turn.tokens) + 2 + 15) // 16 * 16 for turn in trace.turns) + 4096  # as turntree lays them out
    roomy = replace(setup, forest={**setup.forest, "max_tokens": positions, "rollouts_per_state": len(trace.turns)})
    memory = filled(DRAFTERS[name](roomy), trace.turns).memory()
    return None if memory is None else memory / trace.tokens


def cold_bytes(trace: Trace, setup: Setup) -> float | None:
    """Bytes a token of turntree's states without index, with room for half of ``trace``; ``None`` if it has none."""
    tight = Turntree(replace(setup, forest={**setup.forest, "max_tokens": max(1, trace.tokens // 2)}))
    stats = filled(tight, trace.turns).forest.stats()  # type: ignore[attr-defined]
    tokens = getattr(stats, "cold_tokens", 0)
    return stats.cold_bytes / tokens if tokens else None


class SecondEpoch(NamedTuple):
    """An epoch drafted from the one before."""

    at_once: int
    """Dialogues."""
    floor: float
    """Least estimated probability of a draft."""
    length: str
    """Of ``LENGTHS``."""
    run: Replay
    """The second epoch alone."""


def second_epoch(
    first: Trace, second: Trace, setup: Setup, *, at_once: Sequence[int], floors: Sequence[float]
) -> Iterator[SecondEpoch]:
    """Replay ``first`` once, and ``second`` after it with chains of each of ``LENGTHS``."""
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "first.npz"
        drafter = Turntree(replace(setup, budget=8), min_probability=max(floors), chain=True)
        replay(drafter, first.turns, batch=max(at_once), dialogues=True)
        drafter.forest.save(known)
        for batch, floor, (name, length) in product(at_once, floors, LENGTHS.items()):
            drafter = Turntree(setup, min_probability=floor, chain=True, width=length, forest=SpecForest.load(known))
            yield SecondEpoch(batch, floor, name, replay(drafter, second.turns, batch=batch, dialogues=True))


def calibration_error(trace: Trace, setup: Setup, *, batch: int) -> float:
    """Expected calibration error of turntree's probabilities: a node is accepted if its whole path is."""
    counts, predicted, observed = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)

    def watch(drafted: DraftBatch, paths: list[list[int]]) -> None:
        hits = np.zeros(len(drafted.tokens))
        for start, path in zip(drafted.offsets.tolist(), paths, strict=False):
            hits[[start + node for node in path]] = 1.0
        bins = np.minimum((drafted.probabilities * BINS).astype(np.int64), BINS - 1)
        for total, weights in ((counts, None), (predicted, drafted.probabilities), (observed, hits)):
            total += np.bincount(bins, weights, BINS)

    replay(Turntree(setup), trace.turns, batch=batch, watch=watch)
    return float(np.abs(predicted - observed).sum() / counts.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """Seconds of a fresh process."""

    imported: float
    """Importing the store."""
    warm_up: float
    """``warm_up``, which compiles or loads all kernels."""
    all_calls: float
    """That, and the first ``insert``, ``begin``, ``draft``, ``commit``, ``end`` and ``stats``."""


def compilation() -> tuple[Compilation, Compilation]:
    """Measure the first calls with nothing compiled, and again in a second process that finds it compiled."""
    with tempfile.TemporaryDirectory() as cache:
        environment: dict[str, Any] = {**os.environ, "NUMBA_CACHE_DIR": cache}
        runs = []
        for _ in range(2):
            run = subprocess.run(
                [sys.executable, "-c", COMPILE],
                cwd=Path(__file__).parents[1],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            imported, warmed, all_calls = map(float, run.stdout.split())
            runs.append(Compilation(imported=imported, warm_up=warmed, all_calls=all_calls))
    return runs[0], runs[1]
