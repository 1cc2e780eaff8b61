"""Simulate throughput and staleness of synchronous training, verl's asynchronous training and turntree's.

Each rollout device decodes up to 256 episodes at once; the time of a pass by its number of requests was measured on an
H200 (``results/gpu_h200.json``, vLLM without drafts). Lengths come from a recorded trace, whose tries at one task are a
group. Passing over known tokens (to restore keys and values after an update, or to re-verify) costs what a decoded
token adds to a full pass, which is more than on a GPU. A trainer step takes as long per token as in trainings measured
on the CPU, relative to the engine's time (``results/training.json``), divided by the devices. ``async_survival.py``
measured the chance that a new policy keeps a token with the same noise; a turn is kept up to the first token that it
does not keep.

    TURNTREE_DATA=../shared python benchmarks/async_timeline.py [--traces math_cot_100x8] [--json FILE] [--plot FILE]

| way | a step trains on | an update | |---|---|---| | sync | its own groups, once all have ended | happens while
nothing runs | | keep (verl) | the groups that ended first | interrupted episodes continue after their tokens | |
keep-in-order | the groups that were submitted first | interrupted episodes continue after their tokens | | turn | the
groups that ended first | interrupted episodes are re-verified | | episode | the groups that were submitted first |
running episodes and ended episodes of the next step are re-verified | | episode-ended (`in_order: false`) | groups that
ended and were re-verified first | all are re-verified |

Not simulated: prompts, environments and rewards, which are the same in all ways; drafts; several replicas per device.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common.provenance import command_line
from common.script import arguments, keep

from turntree.agents.viewer.chart import Series, line_chart

RESULTS = Path(__file__).parent / "results"
SLOTS = 256
COMMON = (
    ".grid{stroke:#ddd}.tick{font:11px sans-serif;fill:#555}.line polyline{fill:none;stroke-width:2}"
    ".line circle{opacity:0}"
)
#: class and colour of the lines
STYLE = {
    "sync": ("faint", "#8c959f"),
    "keep": ("other", "#d9822b"),
    "keep-in-order": ("ordered", "#b35900"),
    "episode": ("main", "#0b6e99"),
    "episode-ended": ("ended", "#7c3aed"),
}
WAYS = ("sync", "keep", "keep-in-order", "turn", "episode", "episode-ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times in seconds."""

    passes: tuple[tuple[float, float], ...]  #: (requests of a pass, seconds)
    known: float  #: per token that is only passed over
    trained: float  #: per token in the trainer, on one device
    weights: float  #: per update of the engines' weights

    def of_pass(self, requests: int) -> float:
        return float(np.interp(requests, *zip(*self.passes, strict=True)))


def measured(weights: float) -> Costs:
    rows = json.loads((RESULTS / "gpu_h200.json").read_text())["steps"]
    points_of: dict[float, list[tuple[float, float]]] = {}
    for row in rows:
        if row["way"] == "stock" and not row["drafts"]:
            low, high = map(int, row["requests"].split("-"))
            points_of.setdefault((low + high) / 2, []).append((row["ms"] / 1000, row["steps"]))
    means = {
        requests: float(np.average([s for s, _ in found], weights=[n for _, n in found]))
        for requests, found in points_of.items()
    }
    requests = sorted(means)
    seconds = np.maximum.accumulate([means[one] for one in requests])  # more requests take no less
    full = float(seconds[-1])
    steps = json.loads((RESULTS / "training.json").read_text())["ways"]["none"][1:]
    engine, trainer = (
        sum(sum(step[name] for name in names) for step in steps) for names in (["engine"], ["old_log_prob", "update"])
    )
    return Costs(
        passes=tuple(zip(requests, map(float, seconds), strict=True)),
        known=(full - float(seconds[0])) / (requests[-1] - requests[0]),
        trained=full / requests[-1] * trainer / engine,
        weights=weights,
    )


def lengths_of(trace: Path) -> list[list[int]]:
    with np.load(trace) as found:
        ends, mask, state = found["offsets"], found["mask"].astype(np.int64), found["state"]
    sums = np.add.reduceat(mask, ends[:-1])
    return [[int(one) for one in sums[state == task] if one] for task in np.unique(state)]


@dataclass(slots=True, kw_only=True)
class Sample:
    group: int
    device: int
    length: int
    begun: int  #: version of the weights
    known: int = 0  #: tokens sampled so far
    done: bool = False


@dataclass(slots=True)
class Device:
    """One engine: all running samples advance by one token per pass."""

    costs: Costs
    time: float = 0.0
    passes: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list)  #: number of the pass in which each sample ends
    #: (sample, tokens to pass over, tokens to sample)
    queue: deque[tuple[int, int, int]] = field(default_factory=deque)

    def admit(self) -> None:
        while self.queue and len(self.running) < SLOTS:
            name, known, left = self.queue.popleft()
            self.time += known * self.costs.known
            heapq.heappush(self.running, (self.passes + left, name))

    @property
    def next_end(self) -> float:
        if not self.running:
            return math.inf
        return self.time + max(0.0, self.running[0][0] - self.passes) * self.costs.of_pass(len(self.running))

    def end_one(self) -> int:
        self.time = self.next_end
        self.passes, name = max(self.passes, self.running[0][0]), heapq.heappop(self.running)[1]
        self.admit()
        return name

    def advance(self, time: float) -> None:
        # To a time before the next end; a pass that has started is completed.
        if self.running and time > self.time:
            self.passes += (time - self.time) / self.costs.of_pass(len(self.running))
        self.time = max(self.time, time)


class Timeline:
    def __init__(
        self, way: str, costs: Costs, lengths: list[list[int]], hazard: float, args: Any, devices: tuple[int, int]
    ):
        self.way, self.costs, self.lengths, self.hazard, self.args = way.partition("-")[0], costs, lengths, hazard, args
        self.in_order = way in ("sync", "keep-in-order", "episode")
        self.trainers = devices[1] or devices[0]
        self.apart = bool(devices[1])
        self.devices = [Device(costs) for _ in range(devices[0])]
        self.rng = np.random.default_rng(args.seed)
        self.samples: dict[int, Sample] = {}
        self.groups: dict[int, set[int]] = {}
        self.left: dict[int, int] = {}
        self.version = self.number = 0
        self.sampled = self.thrown = 0

    def submit(self, groups: int) -> None:
        for _ in range(groups):
            name = self.number
            lengths = self.lengths[int(self.rng.integers(len(self.lengths)))]
            self.groups[name], self.left[name] = set(), self.args.samples
            for length in self.rng.choice(lengths, self.args.samples):
                sample = self.number = self.number + 1
                device = sample % len(self.devices)
                self.samples[sample] = Sample(group=name, device=device, length=int(length), begun=self.version)
                self.groups[name].add(sample)
                self.devices[device].queue.append((sample, 0, int(length)))
            self.number += 1
        for one in self.devices:
            one.admit()

    def ready(self) -> list[int]:
        # Empty if the groups of the next step are not complete yet.
        wanted = self.args.prompts
        first = list(self.groups)[:wanted] if self.in_order else list(self.groups)
        ended = [group for group in first if not self.left[group]]
        return ended[:wanted] if len(ended) >= wanted else []

    def run(self, until: float = math.inf) -> float:
        # Until the groups of a step are complete, or to ``until``.
        ends = [(one.next_end, index) for index, one in enumerate(self.devices)]
        heapq.heapify(ends)
        now = max(one.time for one in self.devices) if until == math.inf and self.ready() else 0.0
        while until < math.inf or not self.ready():
            end, index = heapq.heappop(ends)
            if end >= until:
                break
            sample = self.samples[self.devices[index].end_one()]
            self.sampled += sample.length - sample.known
            sample.known, sample.done, now = sample.length, True, end
            self.left[sample.group] -= 1
            heapq.heappush(ends, (self.devices[index].next_end, index))
        now = until if until < math.inf else now
        for one in self.devices:
            one.advance(now)
        return max(now, max(one.time for one in self.devices) if self.apart else now)

    def interrupt(self) -> None:
        # Everything that runs starts again; kept tokens are only passed over.
        for one in self.devices:
            for ends, name in one.running:
                sample = self.samples[name]
                known = max(0, min(sample.length - 1, math.floor(sample.length - (ends - one.passes))))
                self.sampled += max(0, known - sample.known)
                sample.known = max(known, sample.known if self.way == "keep" else 0)
            one.running.clear()
            one.queue.clear()
        due = set(list(self.groups)[: self.args.prompts] if self.in_order else self.groups)
        for name, sample in self.samples.items():
            if not sample.done or (self.way == "episode" and sample.group in due):
                self.again(name, sample)
        for one in self.devices:
            one.admit()

    def again(self, name: int, sample: Sample) -> None:
        known = sample.known
        if self.way in ("turn", "episode") and known:
            other = 1 - (1 - self.hazard) ** (self.version - sample.begun if self.way == "episode" else 1)
            kept = int(min(known, self.rng.geometric(other) - 1)) if other else known
            self.thrown += known - kept
            sample.known = kept
        if self.way == "episode":
            sample.begun = self.version
        if sample.done:
            sample.done = False
            self.left[sample.group] += 1
        self.devices[sample.device].queue.append((name, known, sample.length - sample.known))

    def step(self) -> tuple[int, list[int], float]:
        """Return the trained tokens, the versions by which their samples lag, and the end of the step."""
        self.submit(self.args.prompts)
        now = self.run()
        groups = self.ready()
        names = [name for group in groups for name in self.groups.pop(group)]
        for group in groups:
            del self.left[group]
        batch = [self.samples.pop(name) for name in names]
        tokens = sum(one.length for one in batch)
        ended = now + tokens * self.costs.trained / self.trainers
        if self.apart:
            self.run(until=ended)
        self.version += 1
        for one in self.devices:
            one.advance(ended) if self.apart else None
            one.time = max(one.time, ended) + self.costs.weights
        self.interrupt()
        return tokens, [self.version - 1 - one.begun for one in batch], max(one.time for one in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    trace: str
    rate: float
    devices: int
    apart: bool
    ahead: int  #: batches that start before their step; 0 for ``sync``
    way: str
    tokens_per_second: float
    behind: float  #: versions of the weights by which the mean episode lags when it is trained on
    behind_most: int
    thrown: float  #: discarded share of the sampled tokens
    against_sync: float = 0.0
    against_keep: float = 0.0  #: throughput relative to ``keep`` in the same order


def played(
    way: str, costs: Costs, lengths: list[list[int]], hazard: float, args: Any, devices: tuple[int, int], ahead: int
) -> dict[str, Any]:
    # The first steps are not counted.
    line = Timeline(way, costs, lengths, hazard, args, devices)
    if way != "sync":
        line.submit(ahead * args.prompts)
    tokens, behind, begun, first = 0, [], 0.0, args.first + 2 * ahead
    for number in range(args.steps + first):
        trained, versions, ended = line.step()
        if number < first:
            begun = ended
            continue
        tokens += trained
        behind += versions
    return {
        "tokens_per_second": round(tokens / (ended - begun), 1),
        "behind": round(float(np.mean(behind)), 3),
        "behind_most": int(max(behind)),
        "thrown": round(line.thrown / max(1, line.sampled), 4),
    }


def table(rows: Iterable[Row]) -> str:
    lines = [
        "| trace | lr | devices | ahead | way | tokens/s | of sync | of keep | versions behind (most) | thrown away |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        where = f"{row.devices}{' apart' if row.apart else ''}"
        lines.append(
            f"| {row.trace} | {row.rate:g} | {where} | {row.ahead} | {row.way} | {row.tokens_per_second:.0f} | "
            f"{row.against_sync:.2f} | {row.against_keep:.2f} | {row.behind:.2f} ({row.behind_most}) | "
            f"{row.thrown:.3f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--traces", nargs="+", default=["math_cot_100x8"])
    parser.add_argument("--survival", type=Path, default=RESULTS / "async_survival.json")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates of the survival; all if left out")
    parser.add_argument("--ahead", type=int, nargs="+", default=[1], help="batches begun before their step")
    parser.add_argument("--prompts", type=int, default=128, help="groups of a step")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--first", type=int, default=3, help="steps before those that count")
    parser.add_argument("--weights", type=float, default=0.5, help="seconds of an update of the engines, in every way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="an SVG: throughput at each number of devices, over that of sync")
    args = parser.parse_args()
    folder = Path(os.environ.get("TURNTREE_DATA", "../shared")) / "traces"
    if not folder.is_dir():
        print(f"there are no recorded traces in {folder}: set TURNTREE_DATA")
        return 2
    costs, rows = measured(args.weights), []
    survival = json.loads(args.survival.read_text())
    for trace in args.traces:
        lengths = lengths_of(folder / f"{trace}.npz")
        shares = [row for row in survival["rows"] if not args.rates or row["rate"] in args.rates]
        for share, devices, ahead in itertools.product(shares, args.devices, args.ahead):
            for split in [(devices, 0), *([(devices // 2, devices // 2)] if devices > 1 else [])]:
                hazard = share["other_per_token"]
                found = {way: played(way, costs, lengths, hazard, args, split, ahead) for way in WAYS}
                speed = {way: one["tokens_per_second"] for way, one in found.items()}
                for way, one in found.items():
                    alike = "keep-in-order" if way in ("keep-in-order", "episode") else "keep"
                    against = {
                        "against_sync": speed[way] / speed["sync"],
                        "against_keep": speed[way] / speed[alike],
                    }
                    about = {"trace": trace, "rate": share["rate"], "devices": devices, "apart": bool(split[1])}
                    about["ahead"] = ahead
                    rows.append(Row(**about, way=way, **one, **{k: round(v, 3) for k, v in against.items()}))
                print(table(rows[-len(WAYS) :]).split("\n", 2)[2], flush=True)
    report = {
        "command": command_line(),
        "settings": {key: value for key, value in vars(args).items() if not isinstance(value, Path)},
        "costs": asdict(costs),
        "survival_of": survival["model"],
    }
    keep(args.json, {**report, "rows": [asdict(row) for row in rows]})
    if args.plot:
        args.plot.write_text(plot(rows, args) + "\n")
    return 0


def plot(rows: list[Row], args: Any) -> str:
    """Plot the throughput relative to sync, for the first trace at the lowest learning rate, by number of devices."""
    rate = min(row.rate for row in rows)
    lines = []
    for way, (style, _) in STYLE.items():
        where = (args.traces[0], rate, False, min(args.ahead), way)
        some = [row for row in rows if (row.trace, row.rate, row.apart, row.ahead, row.way) == where]
        points = tuple((math.log2(row.devices), row.against_sync) for row in some)
        lines.append(Series(name=way, style=style, points=points))
    title = f"Tokens per second over sync, by log2 of the devices: {', '.join(STYLE)}"
    rules = "".join(f".{style} polyline{{stroke:{colour}}}" for style, colour in STYLE.values())
    picture = line_chart(lines, title=title, across="log2 of the devices")
    picture = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return picture.replace(">", f"><style>{COMMON}{rules}</style>", 1)


if __name__ == "__main__":
    raise SystemExit(main())
