"""Compare the draft store with public drafters: quality and speed of drafts, and memory.

Recorded turns are replayed as targets (``drafting/replay.py``) against a store of the turns before them. All drafters
see the same requests in the same run; times are medians of interleaved repeats, so compare them within one run only.
Figures use the half of the states on which no parameter was chosen (``--half report``).

    python benchmarks/store.py                                     # all figures; needs the recorded traces
    python benchmarks/store.py --fraction 0.1 --only quality       # a quick look
    python benchmarks/store.py --traces demo smollm2 generated     # with the traces of the repository alone

``drafting/drafters.py`` explains how to install the public drafters; missing ones are left out.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep
from drafting import measures
from drafting.drafters import DRAFTERS, LEAN, Setup, installed
from drafting.measures import geometric_mean
from drafting.replay import Replay
from drafting.traces import EPOCHS, RECORDED, TRACES, NoTraces, Trace, epochs, find, generated, load

OURS, PEER, BEST = "turntree", "arctic default", "arctic best"
#: trace -> states for the timings, enough to keep 256 turns live
SPEED_TRACES = {"math_cot_100x8": 50, "humaneval_164x40": 40, "synthetic_rl": 14, "generated": 32}
BATCHES = (1, 64, 256)
AT_ONCE, FLOORS = (4, 16, 64, 256), (0.05, 0.02, 0.0)  #: dialogues at once; smallest draft probabilities
BUDGET = 16  #: nodes per row and step, for figures with one budget


@dataclass(slots=True)
class Report:
    args: argparse.Namespace
    names: list[str]
    record: dict[str, Any] = field(default_factory=dict)  #: all figures, by section

    def trace(self, name: str, half: str | None = None) -> Trace:
        states = max(2, round({**TRACES, **RECORDED, "generated": 32}[name] * self.args.fraction))
        return _states(self.args.data, name, half or self.args.half, states)

    def traces(self) -> list[Trace]:
        return [self.trace(name) for name in self.args.traces]

    def setup(self, trace: Trace, budget: int = BUDGET) -> Setup:
        return Setup(budget=budget, end_tokens=trace.end_tokens, forest=self.args.set)

    def quality_of(self, name: str, trace: Trace, budget: int) -> Replay:
        known = self.record.setdefault("_replays", {})
        key = (name, trace.name, budget)
        if key not in known:
            known[key] = measures.quality(name, trace, self.setup(trace, budget), batch=self.args.batch)
        return known[key]  # type: ignore[no-any-return]

    def quality(self) -> None:
        for budget in self.args.budgets:
            heading(f"tokens per forward pass, budget {budget}", [*self.args.traces, "mean", "drafted"])
            means: dict[str, float] = {}
            for name in self.names:
                runs = [self.quality_of(name, trace, budget) for trace in self.traces()]
                means[name] = geometric_mean(run.tokens_per_forward_pass for run in runs)
                drafted = sum(run.drafted_per_forward_pass for run in runs) / len(runs)
                line(name, [*(run.tokens_per_forward_pass for run in runs), means[name], drafted])
                self.keep("quality", budget, name, dict(zip(self.args.traces, map(counts, runs), strict=True)))
            for peer in self.names[1:] if OURS in means else []:
                ratio = means[OURS] / means[peer]
                print(f"  over {peer}: {ratio:.3f}")
                self.keep("quality ratios", budget, peer, ratio)

    def equal(self) -> None:
        # turntree limited to as many drafts as arctic's default.
        if not {OURS, PEER} <= set(self.names):
            return
        heading(f"equal verification work, budget {BUDGET}", ["arctic", "ours", "ratio", "drafted", "ours", "p >"])
        ratios = []
        for trace in self.traces():
            peer = self.quality_of(PEER, trace, BUDGET)
            ours = measures.equal_work(
                trace, self.setup(trace), batch=self.args.batch, drafted_per_forward_pass=peer.drafted_per_forward_pass
            )
            ratios.append(ours.tokens_per_forward_pass / peer.tokens_per_forward_pass)
            both = [peer.drafted_per_forward_pass, ours.drafted_per_forward_pass, ours.min_probability]
            line(trace.name, [peer.tokens_per_forward_pass, ours.tokens_per_forward_pass, ratios[-1], *both], digits=3)
            self.keep("equal work", trace.name, "turntree", {**asdict(ours), "ratio": ratios[-1]})
        line("geometric mean", ["", "", geometric_mean(ratios)], digits=3)

    def speed(self) -> None:
        size = max(100, round(12_000 * self.args.fraction))
        for batch in BATCHES:
            columns = ["draft us", "(cpu)", "commit us/token", "(cpu)", "step ms", "(cpu)", "drafted"]
            found: dict[str, list[measures.Speed]] = {}
            for trace in self.speed_traces():
                speeds = measures.speed(
                    [*self.names, *([LEAN] if OURS in self.names else [])],
                    trace,
                    self.setup(trace),
                    batch=batch,
                    repeats=self.args.repeats,
                    most_steps=size if batch > 1 else size // 4,
                )
                if not speeds:
                    continue
                heading(f"batch {batch}, {trace.name}", columns)
                for name, s in speeds.items():
                    line(name, [*s.draft_us, *s.commit_us, *s.step_ms, s.drafted])
                    found.setdefault(name, []).append(s)
                    self.keep("speed", batch, trace.name, {**self.kept("speed", batch, trace.name), name: asdict(s)})
            if {OURS, PEER} <= set(found):
                for name in (OURS, LEAN):
                    for kind, word in ((1, "CPU"), (0, "wall")):
                        pairs = zip(found[PEER], found[name], strict=True)
                        ratio = geometric_mean(peer.draft_us[kind] / ours.draft_us[kind] for peer, ours in pairs)
                        print(f"  {PEER} over {name}, draft, {word}: {ratio:.2f}")
                        self.keep("speed ratios", batch, f"{word}{' lean' if name == LEAN else ''}", ratio)

    def insertion(self) -> None:
        names = [name for name in self.names if name not in (BEST, "sglang prob", "vllm ngram")]
        ratios = []
        for trace in self.speed_traces():
            heading(f"insertion, {trace.name}", ["tokens/s", "(cpu)"])
            rates = measures.insertion(names, trace, self.setup(trace), repeats=self.args.repeats)
            for name, (wall, cpu) in rates.items():
                line(name, [wall, cpu], digits=0)
                self.keep("insertion", trace.name, name, (wall, cpu))
            if {OURS, PEER} <= set(rates):
                ratios.append(rates[OURS][1] / rates[PEER][1])
        if ratios:
            print(f"  {OURS} over {PEER}, CPU: {geometric_mean(ratios):.2f}")

    def memory(self) -> None:
        heading("bytes per token", ["hot", "cold"])
        known = [name for name in self.names if name in (OURS, PEER, BEST)]
        traces = [self.trace(name, "all") for name in self.args.traces]
        traces.append(measures.together(traces))
        for trace in traces:
            for name in known:
                hot = measures.hot_bytes(name, trace, self.setup(trace))
                cold = measures.cold_bytes(trace, self.setup(trace)) if name == OURS else None
                line(f"{trace.name} {name}", [hot, cold], digits=1)
                self.keep("memory", trace.name, name, {"hot": hot, "cold": cold})

    def lengths(self) -> None:
        # Chains in a second epoch, by dialogues at once: tokens / drafted tokens per row and step, steps.
        for name in (name for name in self.args.traces if name in EPOCHS):
            first, second = epochs(find(name, self.args.data))
            heading(f"chains, epoch 2, {name}", [*measures.LENGTHS, "us a draft of 32"])
            cells: dict[str, dict[str, Replay]] = {}
            for cell in measures.second_epoch(first, second, self.setup(first), at_once=AT_ONCE, floors=FLOORS):
                cells.setdefault(f"{cell.at_once} at once, p > {cell.floor}", {})[cell.length] = cell.run
            for words, runs in cells.items():
                found = [
                    f"{r.tokens_per_forward_pass:.2f}/{r.drafted_per_forward_pass:.1f}/{r.rounds}"
                    for r in runs.values()
                ]
                line(words, [*found, runs["32"].draft.cpu / runs["32"].rounds * 1e6], digits=0)
                self.keep("lengths", name, words, {length: counts(run) for length, run in runs.items()})

    def calibration(self) -> None:
        heading(f"calibration error, budget {BUDGET}, {measures.BINS} bins", ["error"])
        for trace in self.traces():
            error = measures.calibration_error(trace, self.setup(trace), batch=self.args.batch)
            line(trace.name, [error], digits=4)
            self.keep("calibration error", trace.name, OURS, error)

    def compile(self) -> None:
        first, again = measures.compilation()
        heading("seconds of a fresh process", ["import", "warm-up", "with all first calls"])
        for word, found in (("nothing compiled", first), ("compiled before", again)):
            line(word, [found.imported, found.warm_up, found.all_calls], digits=3)
        self.record["compilation"] = {"first": asdict(first), "again": asdict(again)}

    def speed_traces(self) -> list[Trace]:
        # Both halves, whatever the fraction: a full batch needs hundreds of turns.
        return [_states(self.args.data, n, "all", SPEED_TRACES[n]) for n in self.args.traces if n in SPEED_TRACES]

    def keep(self, *path: object) -> None:
        at = self.record
        for key in path[:-2]:
            at = at.setdefault(str(key), {})
        at[str(path[-2])] = path[-1]

    def kept(self, *path: object) -> dict[str, Any]:
        at: dict[str, Any] = self.record
        for key in path:
            at = at.get(str(key), {})
        return at


SECTIONS: dict[str, tuple[Callable[[Report], None], ...]] = {
    "quality": (Report.quality, Report.equal),
    "speed": (Report.speed, Report.insertion, Report.compile),
    "memory": (Report.memory,),
    "lengths": (Report.lengths,),
    "calibration": (Report.calibration,),
}


@cache
def _states(data: Path | None, name: str, half: Any, states: int) -> Trace:
    if name == "generated":
        return generated(states=states)
    return load(find(name, data), states=states, half=half)


def counts(run: Replay) -> dict[str, float]:
    return {
        "tokens_per_forward_pass": run.tokens_per_forward_pass,
        "drafted_per_forward_pass": run.drafted_per_forward_pass,
        "steps": run.steps,
    }


def heading(title: str, columns: Sequence[str]) -> None:
    print(f"\n{title:<40}" + "".join(f"{column.split('_')[0]:>16}" for column in columns), flush=True)


def line(name: str, values: Sequence[float | str | None], digits: int = 2) -> None:
    shown = ["-" if value is None else value if isinstance(value, str) else f"{value:,.{digits}f}" for value in values]
    print(f"{name:<40}" + "".join(f"{value:>16}" for value in shown), flush=True)


def setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, ast.literal_eval(value)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to run")
    parser.add_argument("--traces", nargs="+", choices=[*TRACES, *RECORDED, "generated"], default=list(TRACES))
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--half", choices=["select", "report", "all"], default="report", help="of the states")
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="share of each trace's states, timed steps and drafts"
    )
    parser.add_argument("--budgets", nargs="+", type=int, default=[4, 8, 16, 32], help="nodes a row and step")
    parser.add_argument("--batch", type=int, default=1, help="live turns where quality is measured")
    parser.add_argument("--repeats", type=int, default=3, help="of each timing")
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE", help="of ForestConfig")
    parser.add_argument("--data", type=Path, help="folder that has traces/ (default: $TURNTREE_DATA, ../shared)")
    args = parser.parse_args(argv)
    args.set = dict(args.set)
    return args


def main() -> None:
    args = parse()
    names, missing = installed()
    report = Report(args, [name for name in names if name in args.drafters])
    about = {
        **provenance(("turntree", "numpy", "numba", "arctic-inference", "sglang", "torch", "vllm")),
        "missing": missing,
        "half": args.half,
    }
    for key, value in about.items():
        print(f"{key}: {value}")
    start = time.perf_counter()
    try:
        for section in args.only:
            for measure in SECTIONS[section]:
                measure(report)
    except NoTraces as error:
        sys.exit(str(error))
    print(f"{time.perf_counter() - start:.0f} s")
    report.record.pop("_replays", None)
    keep(args.out, {**about, **report.record})


if __name__ == "__main__":
    main()
