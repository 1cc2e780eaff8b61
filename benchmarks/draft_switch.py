"""Simulate the total time with drafts relative to the unmodified engine, with and without ``DraftSwitch``.

    python benchmarks/draft_switch.py [--lengths math_cot_100x8] [--json OUT]

Dialogues of recorded lengths, 256, 64 or 4 at once, are played by an engine with the step times of one H200 and a model
of 1.5 billion parameters: without drafts as measured and estimated for unmodified vLLM 0.24.0, with drafts as measured
("now") and as planned after each step of the work on it. Every step is noisy, some are hiccups, and the machine's load
may drift. The engine works ahead: a decision takes effect two steps later and is observed after two more steps.

Ways: drafts in every step; ``DraftBudget`` alone, which compares with undrafted steps of the engine with a drafter
(``UNDRAFTED``), not with the unmodified engine; ``DraftBudget`` in an engine that shows each step at once and equals
the unmodified engine without drafts, like the local engine and SGLang; ``DraftSwitch``. Load and hiccups are functions
of the tokens sampled so far, so all ways meet the same load. A step that drafts less than the maximum costs and gains
proportionally less.

Not covered: which dialogues gain (all gain alike), and real step times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common.provenance import provenance
from common.script import arguments, keep
from drafting import traces

from turntree.spec_tree.budget.draft_budget import DraftBudget
from turntree.spec_tree.budget.draft_switch import DraftSwitch

ROWS = (4, 64, 256)
UNMODIFIED = (2.5, 5.0, 13.0)
UNDRAFTED = (8.75, 11.0, 18.0)  #: milliseconds of a step in which an engine with a drafter drafts nothing ("now")
#: milliseconds of a step with drafts, by requests, after each step of the plan
DRAFTED = {
    "now": (9.7, 19.0, 35.0),
    "full graphs": (5.7, 15.0, 32.0),
    "fused verification": (4.6, 13.0, 25.0),
    "drafter on arrays": (4.0, 11.0, 21.0),
    "asynchronous": (2.8, 7.5, 15.0),
    "wide tails": (2.5, 7.0, 15.0),
}
DEPTH, LAG, NOISE = 8, 2, 0.05
HICCUP = 0.05  #: seconds, once per as many tokens as 400 undrafted steps sample


@dataclass(frozen=True, kw_only=True)
class Load:
    rows: int  #: dialogues at once
    epochs: int
    gain: Callable[[float], float]  #: tokens per request in a step with drafts, by epochs played so far
    drift: float = 0.0


def loads() -> dict[str, Load]:
    found = {
        "nothing found, 256": Load(rows=256, epochs=2, gain=lambda at: 1.0),
        "low overlap, 256": Load(rows=256, epochs=2, gain=lambda at: 1.15),
        "low overlap, 64": Load(rows=64, epochs=1, gain=lambda at: 1.1),
        "low overlap, 4": Load(rows=4, epochs=1, gain=lambda at: 1.15),
        "first epochs, 256": Load(rows=256, epochs=3, gain=lambda at: 1 + 1.75 * min(at, 2.0)),
        "stops, 256": Load(rows=256, epochs=3, gain=lambda at: 4.5 if at < 1 else 1.05),
        "found, 256": Load(rows=256, epochs=3, gain=lambda at: 4.5),
        "found, 64": Load(rows=64, epochs=2, gain=lambda at: 3.0),
        "found, 4": Load(rows=4, epochs=1, gain=lambda at: 3.0),
    }
    drifting = {f"{name}, drifting": Load(**{**vars_of(load), "drift": 0.3}) for name, load in found.items()}
    return {**found, **drifting}


def vars_of(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__dataclass_fields__}


class Unmodified:
    plain, lag = UNMODIFIED, LAG

    def allows(self, rows: int, now: float) -> float:
        # Fraction of the maximum drafts.
        return 0.0

    def observe(self, **_: Any) -> None:
        pass


class Always(Unmodified):
    def allows(self, rows: int, now: float) -> float:
        return 1.0


class Switched(Unmodified):
    def __init__(self) -> None:
        self.switch = DraftSwitch()

    def allows(self, rows: int, now: float) -> float:
        return float(self.switch.wants(rows, now=now))

    def observe(self, *, drafted: int, accepted: int, **step: Any) -> None:
        self.switch.observe(**step, drafted=drafted > 0)


class Alone(Unmodified):
    lag = 0

    def __init__(self, plain: tuple[float, ...] = UNDRAFTED) -> None:
        self.budget, self.plain = DraftBudget(0.05), plain

    def allows(self, rows: int, now: float) -> float:
        return min(self.budget.allow(rows).nodes, DEPTH * rows) / (DEPTH * rows)

    def observe(self, *, rows: int, emitted: int, seconds: float, drafted: int, accepted: int) -> None:
        share = accepted / max(1, drafted) * DEPTH
        taken = np.zeros(drafted, bool)
        taken[:accepted] = True
        self.budget.observe(
            rows=rows,
            tokens=rows + drafted,
            estimates=np.full(drafted, min(0.99, max(0.06, share / DEPTH)), np.float32),
            accepted=taken,
            seconds=seconds,
        )


def play(way: Unmodified, load: Load, lengths: list[int], stage: str, *, seed: int = 0) -> float:
    rng, passed, done = np.random.default_rng(seed), 0.0, 0
    seen: deque[dict[str, Any]] = deque()
    was = 0.0
    total = sum(lengths) * load.epochs
    for epoch in range(load.epochs):
        waiting = np.random.default_rng((seed, epoch)).permutation(lengths).tolist()
        live = np.zeros(0, np.int64)
        while waiting or len(live):
            fresh = [waiting.pop() for _ in range(min(load.rows - len(live), len(waiting)))]
            live = np.concatenate([live, np.array(fresh, np.int64)])
            rows, at = len(live), done / total
            share = way.allows(rows, passed)
            more = max(load.gain(at * load.epochs) - 1, 0.0) * share
            sampled = np.minimum(1 + rng.binomial(DEPTH, more / DEPTH, rows), live)
            plain, drafted = np.interp(rows, ROWS, way.plain), np.interp(rows, ROWS, DRAFTED[stage])
            milliseconds = plain + (drafted - plain) * ((share + was) / 2 if way.lag else share)
            busy = 1 + load.drift * (np.sin(20 * at) + 0.5 * np.sin(150 * at)) / 1.5
            seconds = float(milliseconds / 1e3 * busy * np.exp(NOISE * rng.standard_normal()))
            emitted = int(sampled.sum())
            seconds += HICCUP * ((done + emitted) // (400 * load.rows) - done // (400 * load.rows))
            done, passed, was = done + emitted, passed + seconds, share
            nodes = round(DEPTH * rows * share)
            seen.append(
                {"rows": rows, "emitted": emitted, "seconds": seconds, "drafted": nodes, "accepted": emitted - rows}
            )
            if len(seen) > way.lag:
                way.observe(**seen.popleft())
            live = live - sampled
            live = live[live > 0]
    return passed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One load after one step of the plan: time of the unmodified engine divided by the way's time."""

    load: str
    stage: str
    always: float
    budget_alone: float | None  #: "now" only: the planned engines' undrafted step times are unknown
    budget_own: float  #: with the unmodified engine's undrafted steps, and without working ahead
    switch: float


def measure(lengths: list[int]) -> list[Row]:
    rows = []
    for name, load in loads().items():
        some = lengths if load.rows > 4 else lengths[::16]
        unmodified = play(Unmodified(), load, some, "now")
        for stage in DRAFTED:
            alone = unmodified / play(Alone(), load, some, stage) if stage == "now" else None
            always, own, switch = (
                unmodified / play(way, load, some, stage) for way in (Always(), Alone(UNMODIFIED), Switched())
            )
            row = Row(
                load=name,
                stage=stage,
                always=round(always, 3),
                budget_alone=None if alone is None else round(alone, 3),
                budget_own=round(own, 3),
                switch=round(switch, 3),
            )
            rows.append(row)
            alone = row.budget_alone or "-"
            print(f"{name:30} {stage:20} {always:7.2f} {alone:>7} {own:7.3f} {switch:7.3f}", flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--lengths", default="math_cot_100x8", help="trace whose dialogues' lengths are played")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    trace = traces.load(traces.find(options.lengths, options.data), states=100)
    lengths = [len(turn.tokens) for turn in trace.turns][:400]
    print(
        f"{'load':30} {'stage':20} {'always':>7} {'budget':>7} {'its own':>7} {'switch':>7}   (unmodified engine = 1)"
    )
    rows = measure(lengths)
    worst = {
        "always": min(row.always for row in rows),
        "budget_alone": min(row.budget_alone for row in rows if row.budget_alone),
        "budget_own": min(row.budget_own for row in rows),
        "switch": min(row.switch for row in rows),
        "switch_beside_always_where_drafts_pay": min(row.switch / row.always for row in rows if row.always >= 1.3),
    }
    print("worst", {name: round(value, 3) for name, value in worst.items()})
    keep(options.json, {**provenance(["numpy", "numba"]), "worst": worst, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
