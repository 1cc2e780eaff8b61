"""The local engine against another checkout of itself, on the demo's policy and recorded dialogues.

Episodes of the last recorded step of ``benchmarks/recorded/demo.npz`` are played again by an untrained policy of the
demo's shape: turns as long as the recorded ones, between them what the environment answered. With ``--nodes`` every
step drafts trees of that many nodes from the earlier rounds, which says what wide steps cost; hardly any is accepted.
Each checkout has a process of its own; they play in turn, first one and then the other ahead, and ratios are taken pair
by pair.

    python benchmarks/engine_against.py --against PATH [--batches 256 64 8] [--nodes 8] [--threads 2] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common.provenance import provenance
from rich.console import Console
from rich.table import Table

from turntree.agents.demo.policy import PolicyShape, build_policy
from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

RECORDED = Path(__file__).resolve().parent / "recorded" / "demo.npz"
EPISODES = {256: 256, 64: 128, 8: 24}
"""Episodes that one measurement plays, by batch size."""


def dialogues(count: int) -> list[list[list[int]]]:
    """Recorded episodes of the last step: for each turn what is new before it, and at the end the turns' lengths."""
    with np.load(RECORDED) as kept:
        data = dict(kept)
    last = np.flatnonzero(data["step"] == data["step"].max())
    order = np.random.default_rng(0).permutation(last)[:count]
    found = []
    for episode in order.tolist():
        span = slice(data["offsets"][episode], data["offsets"][episode + 1])
        tokens, mask = data["tokens"][span].tolist(), data["mask"][span].tolist()
        state = int(data["state"][episode])
        new = data["prompt_tokens"][data["prompt_offsets"][state] : data["prompt_offsets"][state + 1]].tolist()
        parts: list[list[int]] = []
        lengths: list[int] = []
        for token, sampled, before in zip(tokens, mask, [0, *mask], strict=False):
            if sampled and not before:
                parts.append(new)
                lengths.append(0)
                new = []
            if sampled:
                lengths[-1] += 1
            else:
                new.append(token)
        found.append([*parts, lengths])
    return found


def play(core: EngineCore, episodes: list[list[list[int]]], seed: int) -> list[int]:
    """Play all episodes, as many at once as the engine takes; returns all sampled tokens."""
    said: list[list[int]] = [[] for _ in episodes]

    def ask(episode: int, turn: int, before: list[int]) -> None:
        *parts, lengths = episodes[episode]
        if turn == len(parts):
            return
        prompt = before + parts[turn]

        def answered(request: Request) -> None:
            said[episode] += request.tokens[len(request.prompt) :]
            ask(episode, turn + 1, request.tokens)

        sampling = Sampling(max_tokens=lengths[turn])
        state = DialogueState.from_tokens(prompt)
        core.add(Request(prompt=prompt, sampling=sampling, state=state, seed=seed + episode, deliver=answered))

    for episode in range(len(episodes)):
        ask(episode, 0, [])
    while core.busy:
        core.step()
    return [token for one in said for token in one]


def engine_of(policy: Policy, batch: int, nodes: int, context: int) -> EngineCore:
    """An engine that drafts trees of so many nodes at every step, or none."""
    drafts = Speculation(max_nodes=nodes, min_probability=0.0, adaptive=False) if nodes else None
    config = LocalEngineConfig(max_batch=batch, max_context=context, speculation=drafts)
    return EngineCore(policy, config, SpecForest(ForestConfig()) if nodes else None)


def serve(args: argparse.Namespace) -> None:
    """The process of one checkout: for each line, a batch size and a seed, play and say what it took."""
    torch.set_num_threads(args.threads)
    policy = Policy(build_policy(PolicyShape()))
    cores: dict[int, EngineCore] = {}
    for line in sys.stdin:
        batch, seed = map(int, line.split())
        core = cores.setdefault(batch, engine_of(policy, batch, args.nodes, args.context))
        episodes = dialogues(EPISODES.get(batch, batch))
        core.forget_prefixes()
        before, began, cpu = core.stats.copy(), time.perf_counter(), time.process_time()
        tokens = play(core, episodes, seed)
        cpu, seconds, spent = time.process_time() - cpu, time.perf_counter() - began, core.stats - before
        print(json.dumps([seconds, cpu, spent.model_seconds, spent.forward_passes, tokens]), flush=True)


class Played(NamedTuple):
    """One measurement."""

    seconds: float
    """Wall time."""
    cpu_seconds: float
    """CPU time of the process."""
    model_seconds: float
    """The model's part of the wall time."""
    passes: int
    """Forward passes."""
    tokens: list[int]
    """What was sampled."""


class Checkout:
    """A process of a checkout that plays on request."""

    def __init__(self, root: Path, options: list[str]) -> None:
        folder = subprocess.run([root / "scripts" / "venv.sh", "cpu"], check=True, stdout=subprocess.PIPE, text=True)
        command = [f"{folder.stdout.strip()}/bin/python", str(Path(__file__).resolve()), "--serve", *options]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, batch: int, seed: int) -> Played:
        """Play the episodes of a batch size once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{batch} {seed}\n")
        self._process.stdin.flush()
        return Played(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the other checkout")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 64, 8])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=0, help="drafted for each request and step")
    parser.add_argument("--context", type=int, default=128, help="longest dialogue that the engines have room for")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each process")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    if args.against is None:
        parser.error("--against PATH: the checkout to compare with")
    options = [f"--{name}={getattr(args, name)}" for name in ("nodes", "context", "threads")]
    roots = {"now": Path(__file__).resolve().parents[1], "before": args.against.resolve()}
    ways = {way: Checkout(root, options) for way, root in roots.items()}
    rows = []
    for batch in args.batches:
        rows.append(measure(ways, batch, args.repeats))
        print(rows[-1], flush=True)
    for way in ways.values():
        way.close()
    about = provenance(["torch", "transformers"])
    table = Table(title=f"{about['machine']}\n{about['command']}")
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=140).print(table)
    if args.json:
        args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def measure(ways: dict[str, Checkout], batch: int, repeats: int) -> dict[str, object]:
    """The ratio of seconds of one batch size, pair by pair."""
    found: list[dict[str, Played]] = []
    for repeat in range(-1, repeats):  # the first round warms up
        order = list(ways)[:: 1 if repeat % 2 else -1]
        found.append({way: ways[way].play(batch, 10_000 + repeat * 1000) for way in order})
    del found[0]
    ratios = {
        what: [getattr(one["before"], what) / getattr(one["now"], what) for one in found]
        for what in ("seconds", "cpu_seconds", "model_seconds")
    }
    return {
        "batch": batch,
        "seconds before": round(statistics.median(one["before"].seconds for one in found), 4),
        "seconds now": round(statistics.median(one["now"].seconds for one in found), 4),
        "ratio": round(statistics.median(ratios["seconds"]), 3),
        "ratio of CPU time": round(statistics.median(ratios["cpu_seconds"]), 3),
        "lowest": round(min(ratios["cpu_seconds"]), 3),
        "highest": round(max(ratios["cpu_seconds"]), 3),
        "ratio of the model's seconds": round(statistics.median(ratios["model_seconds"]), 3),
        "passes": found[0]["now"].passes,
        "rounds with equal tokens": f"{sum(one['before'].tokens == one['now'].tokens for one in found)} of {repeats}",
    }


if __name__ == "__main__":
    main()
