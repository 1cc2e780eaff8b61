"""Simulate the total time with drafts relative to the unmodified engine, with and without ``DraftSwitch``.

    python benchmarks/draft_switch.py [--lengths math_cot_100x8] [--json OUT]

Dialogues of recorded lengths, 256, 64 or 4 at once, are played by an engine with the step times of one H200 and a model
of 1.5 billion parameters: without drafts as measured and estimated for unmodified vLLM 0.24.0, with drafts as measured
("now") and as planned after each step of the work on it. A second table has epochs of 6 s with the step times that were
measured on an H200 later, without and with drafts. Every step is noisy, some are hiccups, and the machine's load may
drift. The engine works ahead: a decision takes effect two steps later and is observed after two more steps.

Ways: drafts in every step; ``DraftBudget`` alone, which compares with undrafted steps of the engine with a drafter
(``UNDRAFTED``), not with the unmodified engine; ``DraftBudget`` in an engine that shows each step at once and equals
the unmodified engine without drafts, like the local engine and SGLang; ``DraftSwitch`` by trials; ``DraftSwitch`` that
knows the agreement of shadow drafts (made in the first and every eighth plain step, known eight steps later) and
start-up times. Load and hiccups are functions of the tokens sampled so far, so all ways meet the same load. A step for
which the budget drafts less than the maximum costs and gains proportionally less. Shorter drafts of the switch end at
their length, and half of their extra cost does not depend on the length.

Not covered: which dialogues gain (all gain alike), and real step times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common.provenance import provenance
from common.script import arguments, keep
from drafting import traces
from numpy.typing import NDArray

from turntree.spec_tree.budget.draft_agreement import DraftAgreement
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
SHADOW = 8
WIDTHS = (2, 4, 8)
TIMED = (1, 4, 16, 64, 128, 256)  #: requests of the steps that are timed at start-up

#: milliseconds of a step measured on an H200, by requests: unmodified vLLM, and with drafts of 8 tokens
H200_ROWS = (1, 4, 8, 16, 32, 64, 128, 192, 256)
H200_UNMODIFIED = (2.43, 2.19, 2.25, 2.34, 3.41, 4.10, 6.28, 9.69, 10.42)
H200_DRAFTED = (3.47, 3.64, 4.64, 4.66, 5.72, 9.30, 12.06, 18.0, 25.49)


@dataclass(frozen=True, kw_only=True)
class Load:
    rows: int  #: dialogues at once
    epochs: int
    gain: Callable[[float], float]  #: tokens per request in a step with drafts, by epochs played so far
    drift: float = 0.0
    pauses: tuple[float, ...] = ()  #: seconds; evenly spread over the tokens
    first_pause: float = 0.0  #: seconds, in the first step with drafts, or after a quarter of the first epoch


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


def epochs() -> dict[str, Load]:
    def jump(at: float, *, first: int) -> float:
        return 4.5 if at >= first else 1.0

    def siblings(at: float) -> float:
        return 1 + 0.6 * at if at < 1 else 4.5

    given = {"rows": 256, "epochs": 4}
    return {
        "jump at epoch 2": Load(**given, gain=partial(jump, first=1)),
        "jump at epoch 3": Load(**given, gain=partial(jump, first=2)),
        "siblings, then jump": Load(**given, gain=siblings),
        "jump at epoch 2, pause in the first trial": Load(**given, gain=partial(jump, first=1), first_pause=2.74),
        "jump at epoch 2, pauses": Load(**given, gain=partial(jump, first=1), pauses=(0.5, 3.0, 1.0, 2.0, 0.5, 3.0)),
        "nothing found": Load(**given, gain=lambda at: 1.0),
        "nothing found, pauses": Load(**given, gain=lambda at: 1.0, pauses=(0.5, 3.0, 1.0, 2.0, 0.5, 3.0)),
        "low overlap": Load(**given, gain=lambda at: 1.3),
        "found": Load(**given, gain=lambda at: 4.5),
        "jump at epoch 2, drifting": Load(**given, gain=partial(jump, first=1), drift=0.3),
    }


def vars_of(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__dataclass_fields__}


class Unmodified:
    lag = LAG

    def allows(self, rows: int, now: float) -> float:
        # Fraction of the maximum drafts.
        return 0.0

    def observe(self, **_: Any) -> None:
        pass

    def agree(self, agreement: DraftAgreement) -> None:
        pass


class Always(Unmodified):
    def __init__(self, share: float) -> None:
        self.share = share

    def allows(self, rows: int, now: float) -> float:
        return self.share


class Switched(Unmodified):
    def __init__(self) -> None:
        self.switch = DraftSwitch(longest=DEPTH)

    def allows(self, rows: int, now: float) -> float:
        return self.switch.width(rows, now=now) / DEPTH

    def observe(self, *, drafted: int, accepted: int, **step: Any) -> None:
        self.switch.observe(**step, width=drafted // step["rows"])


class Informed(Switched):
    def __init__(self, times: Times) -> None:
        super().__init__()
        widths = [(rows, width) for rows in TIMED for width in (0, *WIDTHS)]
        self.switch.learn_cost([(rows, width, times.milliseconds(rows, width) / 1e3) for rows, width in widths])

    def agree(self, agreement: DraftAgreement) -> None:
        self.switch.learn_agreement(agreement)


class Alone(Unmodified):
    lag = 0

    def __init__(self) -> None:
        self.budget = DraftBudget(0.05)

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


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds of a step by requests, without drafts and with drafts of ``DEPTH`` tokens."""

    rows: tuple[int, ...]
    plain: tuple[float, ...]
    drafted: tuple[float, ...]

    def milliseconds(self, rows: int, width: int) -> float:
        plain, drafted = np.interp(rows, self.rows, self.plain), np.interp(rows, self.rows, self.drafted)
        return float(plain + (drafted - plain) * (0.5 + 0.5 * width / DEPTH if width else 0.0))


@dataclass
class Shadow:
    """The agreement of drafts of earlier plain steps, or of a step with drafts."""

    steps: int = 0
    waiting: deque[tuple[int, DraftAgreement]] = field(default_factory=deque)

    def step(self, way: Unmodified, kept: NDArray[np.int64], width: int) -> None:
        self.steps += 1
        if width or self.steps % SHADOW == 1:
            deep = width or DEPTH
            agreed = (kept[:, None] > np.arange(deep)).sum(0)
            known = self.steps + LAG + (0 if width else SHADOW)
            self.waiting.append((known, DraftAgreement(len(kept), np.full(deep, len(kept)), agreed, not width)))
        while self.waiting and self.waiting[0][0] <= self.steps:
            way.agree(self.waiting.popleft()[1])


def play(way: Unmodified, load: Load, lengths: list[int], times: Times, *, seed: int = 0) -> list[float]:
    """Return the seconds of each epoch."""
    rng, passed, done = np.random.default_rng(seed), 0.0, 0
    seen: deque[dict[str, Any]] = deque()
    was, ends, shadow = 0.0, [0.0], Shadow()
    unpaused = load.first_pause
    total = sum(lengths) * load.epochs
    for epoch in range(load.epochs):
        waiting = np.random.default_rng((seed, epoch)).permutation(lengths).tolist()
        live = np.zeros(0, np.int64)
        while waiting or len(live):
            fresh = [waiting.pop() for _ in range(min(load.rows - len(live), len(waiting)))]
            live = np.concatenate([live, np.array(fresh, np.int64)])
            rows, at = len(live), done / total
            share = way.allows(rows, passed)
            more = max(load.gain(at * load.epochs) - 1, 0.0)
            if way.lag:
                agrees = rng.binomial(DEPTH, more / DEPTH, rows)
                sampled = np.minimum(1 + np.minimum(agrees, round(DEPTH * share)), live)
                milliseconds = sum(times.milliseconds(rows, round(DEPTH * one)) for one in (share, was)) / 2
                shadow.step(way, np.minimum(agrees, live - 1), round(DEPTH * share))
            else:
                sampled = np.minimum(1 + rng.binomial(DEPTH, more * share / DEPTH, rows), live)
                plain, drafted = (np.interp(rows, times.rows, column) for column in (times.plain, times.drafted))
                milliseconds = float(plain + (drafted - plain) * share)
            busy = 1 + load.drift * (np.sin(20 * at) + 0.5 * np.sin(150 * at)) / 1.5
            seconds = float(milliseconds / 1e3 * busy * np.exp(NOISE * rng.standard_normal()))
            emitted = int(sampled.sum())
            seconds += HICCUP * ((done + emitted) // (400 * load.rows) - done // (400 * load.rows))
            fits = len(load.pauses) + 1
            seconds += sum(load.pauses[int(at * fits) : int((done + emitted) / total * fits)])
            if unpaused and (share or at * load.epochs > 0.25):
                seconds, unpaused = seconds + unpaused, 0.0
            done, passed, was = done + emitted, passed + seconds, share
            nodes = round(DEPTH * rows * share)
            seen.append(
                {"rows": rows, "emitted": emitted, "seconds": seconds, "drafted": nodes, "accepted": emitted - rows}
            )
            if len(seen) > way.lag:
                way.observe(**seen.popleft())
            live = live - sampled
            live = live[live > 0]
        ends.append(passed)
    return np.diff(ends).tolist()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One load after one step of the plan: time of the unmodified engine divided by the way's time."""

    load: str
    stage: str
    fixed: float  #: the best fixed draft length, or no drafts
    always: float
    budget_alone: float | None  #: "now" only: the planned engines' undrafted step times are unknown
    budget_own: float  #: with the unmodified engine's undrafted steps, and without working ahead
    trials: float
    switch: float


def measure(lengths: list[int]) -> list[Row]:
    rows = []
    for name, load in loads().items():
        some = lengths if load.rows > 4 else lengths[::16]
        for stage, drafted in DRAFTED.items():
            times = Times(rows=ROWS, plain=UNMODIFIED, drafted=drafted)
            unmodified = sum(play(Unmodified(), load, some, times))
            alone = None
            if stage == "now":
                alone = unmodified / sum(play(Alone(), load, some, replace(times, plain=UNDRAFTED)))
            ways = [*(Always(width / DEPTH) for width in WIDTHS), Alone(), Switched(), Informed(times)]
            *fixed, own, trials, switch = (unmodified / sum(play(way, load, some, times)) for way in ways)
            row = Row(
                load=name,
                stage=stage,
                fixed=round(max(1.0, *fixed), 3),
                always=round(fixed[-1], 3),
                budget_alone=None if alone is None else round(alone, 3),
                budget_own=round(own, 3),
                trials=round(trials, 3),
                switch=round(switch, 3),
            )
            rows.append(row)
            print(
                f"{name:30} {stage:20} {row.fixed:7.2f} {row.always:7.2f} {row.budget_alone or '-':>7} {own:7.3f} "
                f"{trials:7.3f} {switch:7.3f}",
                flush=True,
            )
    return rows


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """One load with the step times of the H200: per epoch, time of the unmodified engine divided by the way's time."""

    load: str
    fixed: list[float]  #: the best fixed draft length of the epoch, or no drafts
    trials: list[float]
    switch: list[float]
    figures: dict[str, float]  #: of the switch, after the last epoch


def measure_epochs(lengths: list[int]) -> list[Epochs]:
    found = []
    times = Times(rows=H200_ROWS, plain=H200_UNMODIFIED, drafted=H200_DRAFTED)
    for name, load in epochs().items():
        unmodified, informed = play(Unmodified(), load, lengths, times), Informed(times)
        ways = [Unmodified(), *(Always(width / DEPTH) for width in WIDTHS), Switched(), informed]
        *fixed, trials, switch = (
            [round(plain / took, 3) for plain, took in zip(unmodified, play(way, load, lengths, times), strict=True)]
            for way in ways
        )
        best = [max(epoch) for epoch in zip(*fixed, strict=True)]
        figures = {key: round(value, 3) for key, value in informed.switch.figures().items()}
        found.append(Epochs(load=name, fixed=best, trials=trials, switch=switch, figures=figures))
        columns = ("  ".join(f"{value:5.2f}" for value in column) for column in (best, trials, switch))
        print(f"{name:42} {' | '.join(columns)}", flush=True)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--lengths", default="math_cot_100x8", help="trace whose dialogues' lengths are played")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    trace = traces.load(traces.find(options.lengths, options.data), states=100)
    lengths = [len(turn.tokens) for turn in trace.turns][:400]
    print("unmodified engine = 1")
    columns = ("best", "always", "budget", "its own", "trials", "switch")
    print(f"{'load':30} {'stage':20} {' '.join(f'{name:>7}' for name in columns)}")
    rows = measure(lengths)
    print(f"\n{'epochs with step times of an H200':42} {'best':26} | {'trials':26} | switch")
    epochs = measure_epochs(lengths)
    paying = [(now, best) for row in epochs for now, best in zip(row.switch, row.fixed, strict=True) if best >= 1.3]
    worst = {
        "always": min(row.always for row in rows),
        "budget_alone": min(row.budget_alone for row in rows if row.budget_alone),
        "budget_own": min(row.budget_own for row in rows),
        "trials": min(row.trials for row in rows),
        "switch": min(row.switch for row in rows),
        "switch_epoch": min(min(row.switch) for row in epochs),
        "switch_beside_fixed_where_drafts_pay": min(row.switch / row.fixed for row in rows if row.fixed >= 1.3),
        "switch_epoch_beside_fixed_where_drafts_pay": min(now / best for now, best in paying),
    }
    worst = {name: round(value, 3) for name, value in worst.items()}
    print("worst", worst)
    found = {"rows": [asdict(row) for row in rows], "epochs": [asdict(row) for row in epochs]}
    keep(options.json, {**provenance(["numpy", "numba"]), "worst": worst, **found})


if __name__ == "__main__":
    main()
