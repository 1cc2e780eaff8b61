"""Long dialogues first: how long a batch takes by the order in which its dialogues are given slots.

``traces``: recorded dialogues in a simulation of continuous batching with the step times that an H200 took for as many
requests (``results/gpu_h200.json``). Half of each state's dialogues is learnt from and the other half is played, in
rotating splits; tasks arrive in random order, siblings together. ``arrival`` gives slots in that order, ``expected`` by
what the store of lengths expects, and ``oracle`` by the lengths themselves: what it gains no order can surpass by much.
``mixed`` is a rollout with as many dialogues of each trace, in which the tasks say which dialogues are long. In the
control the lengths are dealt out anew, so that no state says anything. ``told`` is how much of their variance the
states explain, ``corr`` the correlation of lengths and expectations, and ``early`` the share of the longest tenth that
stands in the first quarter of the order by expectation.

``training``: GRPO on the calculator with a long task in eight and more dialogues than slots. In each epoch all ways
play the same episodes with the same weights, each with its own store, in rotating order: ``arrival``, ``longest`` by
the lengths of the epochs before, and ``long drafts`` as that one, where few requests draft up to 32 tokens together.

    python benchmarks/long_first.py [--what traces training] [--data ../shared] [--json OUT]
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common.episodes import play_all
from common.provenance import provenance
from common.script import arguments, keep, show, titled
from numpy.typing import NDArray
from trained.snapshots import ENV, ENV_KWARGS
from trained.training import Setting, Trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.local.admission import longest_first
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Sampling, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits, make
from turntree.spec_tree import DialogueState
from turntree.spec_tree.lengths import LengthsByState

TRACES = ("math_cot_100x8", "humaneval_164x40", "game24_100x40", "gsm8k_1319x4", "tau_airline_50x4", "tot_text_100x10")
MEASURED = Path(__file__).parent / "results" / "gpu_h200.json"
WAYS = ("arrival", "longest", "long drafts")
SPLITS = 12
SLOTS = (16, 32, 64)
MIXED = (16, 32, 48, 96)
"""Dialogues of each trace in a mixed rollout."""
SIBLINGS = 8
"""Most dialogues of a task in it."""
Lengths = NDArray[np.int64]


def step_seconds() -> Callable[[int], float]:
    """Seconds of a step by its number of requests, as measured without drafts; straight lines in between."""
    found: dict[float, list[float]] = {}
    for row in json.loads(MEASURED.read_text())["steps"]:
        if row["way"] == "stock" and not row["drafts"]:
            low, high = map(int, re.findall(r"\d+", row["requests"]))
            found.setdefault((low + high) / 2, []).append(row["ms"] / 1000)
    at = sorted(found)
    seconds = np.maximum.accumulate([statistics.median(found[requests]) for requests in at])
    return lambda requests: float(np.interp(requests, at, seconds))


def makespan(lengths: Lengths, order: Sequence[int], slots: int, seconds: Callable[[int], float]) -> float:
    """Seconds until all dialogues have ended that are given slots in this order."""
    live: list[int] = []
    waiting, now, steps = list(reversed(order)), 0.0, 0
    while waiting or live:
        while waiting and len(live) < slots:
            heapq.heappush(live, steps + int(lengths[waiting.pop()]))
        now += (live[0] - steps) * seconds(len(live))
        steps = live[0]
        while live and live[0] == steps:
            heapq.heappop(live)
    return now


def dialogues(file: Path) -> tuple[Lengths, Lengths]:
    """Sampled tokens and starting state of each dialogue of a trace."""
    with np.load(file) as trace:
        sampled = np.concatenate([[0], np.cumsum(trace["mask"], dtype=np.int64)])
        lengths = np.diff(sampled[trace["offsets"]])
        return lengths, trace["state"].astype(np.int64)


def told_share(lengths: Lengths, states: Lengths) -> float:
    """Share of the variance between the states, as an unbiased estimate (one-way analysis of variance)."""
    groups = [lengths[states == state] for state in np.unique(states)]
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / (len(lengths) - len(groups))
    return max(0.0, 1 - within / float(lengths.var(ddof=1)))


class Recorded(NamedTuple):
    """Dialogues, each array of shape (dialogues,)."""

    lengths: Lengths
    states: Lengths
    traces: Lengths
    """Number of the trace."""


def mixed(recorded: Sequence[Recorded], count: int, seed: int) -> Recorded:
    """Random tasks of all traces, with twice ``count`` dialogues of each: half of them is learnt from."""
    rng, parts, tasks = np.random.default_rng(seed), [], 0
    for number, trace in enumerate(recorded):
        held = 0
        for state in rng.permutation(np.unique(trace.states)):
            own = rng.permutation(np.flatnonzero(trace.states == state))[: 2 * SIBLINGS]
            if held and held + len(own) > 2 * count:
                break
            parts.append(np.stack([trace.lengths[own], np.full(len(own), tasks), np.full(len(own), number)]))
            held, tasks = held + len(own), tasks + 1
    return Recorded(*np.concatenate(parts, axis=1))


def simulated(recorded: Recorded, slots: int, seed: int, seconds: Callable[[int], float]) -> dict[str, float]:
    """Seconds of one split, by order, and how good the expectations are."""
    lengths, states, traces = recorded
    rng = np.random.default_rng(seed)
    ranks = np.empty(len(lengths), np.int64)
    for state in np.unique(states):
        own = np.flatnonzero(states == state)
        ranks[own] = rng.permutation(len(own)) % 2
    store = LengthsByState()
    keys = [
        DialogueState(exact=int(state) + 1, task=str(state), env=str(trace))
        for state, trace in zip(states, traces, strict=True)
    ]
    for i in np.flatnonzero(ranks == 0):
        store.learn(keys[i], int(lengths[i]))
    place = rng.permutation(int(states.max()) + 1)
    played = sorted(np.flatnonzero(ranks == 1).tolist(), key=lambda i: int(place[states[i]]))
    expected = [store.expect(keys[i]) for i in played]
    ways = {
        "arrival": list(range(len(played))),
        "expected": longest_first(expected),
        "oracle": longest_first([float(lengths[i]) for i in played]),
    }
    longest = ways["oracle"][: -(-len(played) // 10)]
    return {
        **{way: makespan(lengths[played], order, slots, seconds) for way, order in ways.items()},
        "dialogues": len(played),
        "correlation": float(np.corrcoef(lengths[played], expected)[0, 1]),
        "early": len({*longest} & {*ways["expected"][: len(played) // 4]}) / len(longest),
    }


def traces(data: Path) -> list[dict[str, Any]]:
    """The simulation of all traces that are there and of rollouts that mix them, each with its control."""
    files = {name: data / "traces" / f"{name}.npz" for name in TRACES}
    held = {name: dialogues(file) for name, file in files.items() if file.exists()}
    whole = {name: Recorded(*one, np.zeros_like(one[0])) for name, one in held.items()}
    kinds: dict[str, Callable[[int], Recorded]] = {name: lambda seed, one=one: one for name, one in whole.items()}
    for count in MIXED if len(whole) > 1 else ():
        kinds[f"mixed, {count} of each"] = partial(mixed, list(whole.values()), count)
    seconds, rows = step_seconds(), []
    for (name, kind), control, slots in product(kinds.items(), (False, True), SLOTS):
        found, told = [], []
        for seed in range(SPLITS):
            recorded = kind(seed)
            if control:
                dealt = np.random.default_rng(seed).permutation(recorded.lengths)
                recorded = recorded._replace(lengths=dealt)
            told.append(told_share(recorded.lengths, recorded.states))
            found.append(simulated(recorded, slots, seed, seconds))
        mean = {of: statistics.fmean(one[of] for one in found) for of in found[0]}
        rows.append(
            {
                "trace": name,
                "control": control,
                "dialogues": round(mean["dialogues"]),
                "slots": slots,
                "told": statistics.fmean(told),
                "correlation": mean["correlation"],
                "early": mean["early"],
                "seconds": {way: mean[way] for way in ("arrival", "expected", "oracle")},
                "by_oracle": statistics.fmean(one["expected"] / one["oracle"] for one in found),
                "arrival_by_expected": statistics.fmean(one["arrival"] / one["expected"] for one in found),
                "arrival_by_oracle": statistics.fmean(one["arrival"] / one["oracle"] for one in found),
            }
        )
    return rows


def show_traces(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    seconds = ("arrival s", "expected s", "oracle s")
    columns = ("told", "corr", "early", "dialogues", "slots", *seconds, "to oracle", "gain", "oracle's")
    shown = [
        (
            one["trace"], "dealt anew" if one["control"] else "recorded", f"{one['told']:.0%}",
            f"{one['correlation']:.2f}", f"{one['early']:.0%}", one["dialogues"], one["slots"],
            *(f"{one['seconds'][way]:.2f}" for way in ("arrival", "expected", "oracle")),
            f"{one['by_oracle']:.3f}", f"{one['arrival_by_expected']:.2f}", f"{one['arrival_by_oracle']:.2f}",
        )
        for one in rows
    ]  # fmt: skip
    show(title, ("trace", "lengths", *columns), shown, words=("trace", "lengths"))


def training(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Wall time of the rollouts of a training, by epoch and way."""
    source = warm_started_policy(seed=0)
    limits = {"max_turns": 14, "max_turn_tokens": 16, "max_context_tokens": 240}
    env_kwargs = {**ENV_KWARGS, "limits": limits, "long_every": 8, "long_numbers": 10}
    setting = Setting(env=ENV, env_kwargs=env_kwargs, tasks=args.tasks, batch=args.tasks, samples=4, learning_rate=5e-4)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    trainer, renderer = Trainer(model, setting), Renderer(AutoTokenizer.from_pretrained(source))
    engines, rows = {}, []
    for way in WAYS:
        speculation = Speculation(few_nodes=32 if way == "long drafts" else None)
        config = LocalEngineConfig(max_batch=args.slots, max_context=256, monitors=False, speculation=speculation)
        engines[way] = LocalEngine(Policy.load(source, dtype="float32", device="cpu"), config=config)
    lengths = {way: LengthsByState() if way != "arrival" else None for way in WAYS}
    envs = [make(ENV, **{**env_kwargs, "limits": Limits(**limits)}) for _ in range(args.tasks * setting.samples)]
    try:
        for epoch in range(args.epochs):
            found = {}
            for way in WAYS[epoch % len(WAYS) :] + WAYS[: epoch % len(WAYS)]:
                began = time.perf_counter()
                episodes = play(engines[way], renderer, envs, args.tasks, epoch, lengths[way])
                found[way] = episodes
                row = {"epoch": epoch, "way": way, "seconds": time.perf_counter() - began}
                rows.append({**row, "turns": sum(len(episode.turns) for episode in episodes)})
            said = {way: [[t.completion.token_ids for t in one.turns] for one in found[way]] for way in WAYS}
            for row in rows[-len(WAYS) :]:
                row["same"] = statistics.fmean(a == b for a, b in zip(said["arrival"], said[row["way"]], strict=True))
            trainer.update(found["arrival"])
            for engine in engines.values():
                engine.update_weights(trainer.named())
    finally:
        for engine in engines.values():
            engine.close()
    return rows


def play(
    engine: LocalEngine, renderer: Renderer, envs: Sequence[Any], tasks: int, epoch: int, lengths: LengthsByState | None
) -> list[Episode]:
    """All episodes of an epoch at once, the samples of a task beside each other."""
    samples = len(envs) // tasks

    async def one(env: Any, task: int, sample: int) -> Episode:
        sampling = Sampling(temperature=1.0, seed=derive_seed(epoch, task * samples + sample))
        return await rollout(env, engine, renderer, index=task, seed=task, sampling=sampling, lengths=lengths)

    return play_all(envs, product(range(tasks), range(samples)), one)


def show_training(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    later = [one for one in rows if one["epoch"]]  # in the first one nothing is known
    seconds = {way: [one["seconds"] for one in later if one["way"] == way] for way in WAYS}
    shown = []
    for way in WAYS:
        gain = statistics.median(a / b for a, b in zip(seconds["arrival"], seconds[way], strict=True))
        same = statistics.fmean(one["same"] for one in rows if one["way"] == way)
        shown.append((way, f"{statistics.median(seconds[way]):.2f}", f"{gain:.2f}", f"{same:.0%}"))
    show(title, ("way", "median s of an epoch", "arrival by it", "same episodes"), shown, words=("way",))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--what", nargs="+", choices=("traces", "training"), default=("traces", "training"))
    parser.add_argument("--data", type=Path, default=Path("../shared"))
    parser.add_argument("--epochs", type=int, default=7, help="of the training")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--slots", type=int, default=16)
    args = parser.parse_args()
    about = provenance(["torch"])
    title, found = titled(about), {}
    if "traces" in args.what:
        show_traces(found.setdefault("traces", traces(args.data)), title)
    if "training" in args.what:
        show_training(found.setdefault("training", training(args)), title)
    keep(args.json, {**about, **found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
