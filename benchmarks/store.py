"""How well and how fast the store drafts.

Quality: recorded turns are replayed as targets. The store holds the turns before them; a draft is
accepted as far as it matches. Tokens per step = tokens emitted per verify step.

Time: turns are replayed 256 at a time, one draft and one commit a step for the whole batch, as an
engine does. CPU time of this process; a busy machine still inflates it (caches, shared cores), so trust
ratios within one run.

    python benchmarks/store.py --synthetic              # generated turns only
    python benchmarks/store.py --data ../shared         # and the recorded traces
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, SpecForest

Turn = tuple[DialogueState, list[int]]

TRACES = {
    "math_cot_100x8": 40,
    "gsm8k_1319x4": 150,
    "humaneval_164x40": 40,
    "game24_100x40": 30,
    "synthetic_rl": 6,
    "tau_airline_50x4": 25,
    "tot_text_100x10": 15,
}
"""Trace -> dialogues' starting states that are replayed."""
PREFIX_ONLY = (("exact", 1024, 1.0),)
"""The control: a tree that drafts only while a turn agrees from its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    data: str
    mode: str
    batch: int
    tokens_per_step: float
    drafted_per_step: float
    draft_us: float
    """Microseconds a row and step."""
    commit_us: float
    """Microseconds a row and step."""
    budget_us: float
    """The aim: 8 us a row and step, 1 us more for each token drafted or committed."""

    def __str__(self) -> str:
        times = (self.draft_us, self.commit_us, self.draft_us + self.commit_us, self.budget_us)
        return (
            f"{self.data:<22}{self.mode:<24}{self.batch:>5}{self.tokens_per_step:>8.2f}{self.drafted_per_step:>8.2f}"
        ) + "".join(f"{time:>8.1f}" for time in times)


def synthetic(*, steps: int = 8, states: int = 32, samples: int = 8, seed: int = 0) -> list[Turn]:
    """Short turns of 5 to 40 tokens over 32 tokens: every step visits the same states again.

    Each state has a few ways to speak, made of pieces that all states share; a sample takes one
    and slips now and then, after which it goes on or changes to another way.
    """
    rng = random.Random(seed)
    pieces = [[rng.randrange(31) for _ in range(rng.randint(2, 6))] for _ in range(24)]
    ways: list[list[list[int]]] = []
    for _ in range(states):
        ways.append([])
        for _ in range(3):
            way: list[int] = []
            length = rng.randint(5, 39)
            while len(way) < length:
                way += [*rng.choice(pieces), rng.randrange(31)]
            ways[-1].append(way[:length])
    turns: list[Turn] = []
    for _ in range(steps):
        for index, spoken in enumerate(ways):
            state = DialogueState.from_tokens([index], task=f"task-{index}", env="synthetic")
            for _ in range(samples):
                way, said, at = rng.choices(spoken, (6, 3, 1))[0], [], 0
                while at < len(way) and len(said) < 39:
                    if rng.random() < 0.08:
                        said.append(rng.randrange(31))
                        way = rng.choice(spoken)
                    else:
                        said.append(way[at])
                    at += 1
                turns.append((state, [*said, 31]))
    return turns


def recorded(path: Path, dialogues: int) -> list[Turn]:
    """Turns of a trace in the order epoch, sample, state; only what the policy wrote."""
    trace = np.load(path)
    known = np.unique(trace["state"])[:dialogues]
    chosen = np.flatnonzero(np.isin(trace["state"], known))
    order = chosen[np.lexsort([trace[name][chosen] for name in ("state", "sample", "epoch")])]
    all_tokens, all_mask, prompts = trace["tokens"], trace["mask"], trace["prompt_tokens"]
    offsets, prompt_offsets, states = trace["offsets"], trace["prompt_offsets"], trace["state"]
    turns: list[Turn] = []
    for i in order:
        prompt = prompts[prompt_offsets[states[i]] : prompt_offsets[states[i] + 1]]
        tokens = np.concatenate([prompt, all_tokens[offsets[i] : offsets[i + 1]]]).tolist()
        mask = np.concatenate([np.zeros(len(prompt) + 1), all_mask[offsets[i] : offsets[i + 1]], [0]])
        edges = np.flatnonzero(np.diff(mask))
        history: list[str] = []
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            state = DialogueState.from_tokens(
                tokens[:start], task=str(states[i]), tools="\n".join(history), env=path.stem
            )
            turns.append((state, tokens[start:stop]))
            history.append(str(tokens[start:stop]))
    return turns


def accepted(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int]) -> int:
    """Depth down to which a row's draft agrees with ``target``."""
    children = {pair: node for node, pair in enumerate(zip(parents, tokens, strict=True))}
    at = -1
    for depth, token in enumerate(target):
        node = children.get((at, token))
        if node is None:
            return depth
        at = node
    return len(target)


def rows_of(batch: DraftBatch) -> Iterator[tuple[list[int], list[int]]]:
    """Tokens and parents of each row."""
    tokens, parents, offsets = batch.tokens.tolist(), batch.parents.tolist(), batch.offsets.tolist()
    for start, stop in pairwise(offsets):
        yield tokens[start:stop], parents[start:stop]


def replay(turns: Sequence[Turn], *, data: str, mode: str, batch: int, config: ForestConfig, **draft: object) -> Row:
    """Replay ``turns``, ``batch`` at a time; a turn that ends makes room for the next one."""
    forest = SpecForest(config)
    waiting = iter(turns)
    live: list[tuple[int, list[int], int]] = []
    steps = emitted = drafted = 0
    drafting = committing = 0.0
    clock = time.process_time
    while True:
        fresh = list(islice(waiting, batch - len(live)))
        handles = forest.begin([state for state, _ in fresh])
        live += [(handle, target, 0) for handle, (_, target) in zip(handles, fresh, strict=True)]
        if not live:
            break
        handles = [handle for handle, _, _ in live]
        room = [len(target) - done for _, target, done in live]
        start = clock()
        drafts = forest.draft(handles, room=room, **draft)  # type: ignore[arg-type]
        drafting += clock() - start
        said = []
        for (tokens, parents), (_, target, done) in zip(rows_of(drafts), live, strict=True):
            rest = target[done:]
            said.append(rest[: accepted(tokens, parents, rest) + 1])
        start = clock()
        forest.commit(handles, said)
        committing += clock() - start
        steps += len(live)
        drafted += len(drafts.tokens)
        emitted += sum(map(len, said))
        moved = [(h, target, done + len(new)) for (h, target, done), new in zip(live, said, strict=True)]
        forest.end([h for h, target, done in moved if done == len(target)])
        live = [turn for turn in moved if turn[2] < len(turn[1])]
    return Row(
        data=data,
        mode=mode,
        batch=batch,
        tokens_per_step=emitted / steps,
        drafted_per_step=drafted / steps,
        draft_us=drafting / steps * 1e6,
        commit_us=committing / steps * 1e6,
        budget_us=8 + (drafted + emitted) / steps,
    )


def measure(turns: list[Turn], data: str, config: ForestConfig) -> Iterator[Row]:
    """All lines of one data set."""
    prefix_only = replace(config, levels=PREFIX_ONLY)
    tree, chain = {"max_nodes": 16}, {"max_nodes": 8, "chain": True}
    sure = {"max_nodes": 8, "min_probability": 0.4}
    yield replay(turns, data=data, mode="tree of 16", batch=1, config=config, **tree)
    yield replay(turns, data=data, mode="tree of 16, no re-join", batch=1, config=prefix_only, **tree)
    yield replay(turns, data=data, mode="chain of 8", batch=1, config=config, **chain)
    yield replay(turns, data=data, mode="tree of 8, p > 0.4", batch=256, config=config, **sure)
    yield replay(turns, data=data, mode="tree of 8", batch=256, config=config, max_nodes=8)
    yield replay(turns, data=data, mode="chain of 8", batch=256, config=config, **chain)


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay turns against the store: tokens per step and CPU time.")
    parser.add_argument("--synthetic", action="store_true", help="generated turns only")
    parser.add_argument("--data", type=Path, help="folder that has traces/ (default: $TURNTREE_DATA)")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of each trace that is replayed")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    args = parser.parse_args()
    repository = Path(__file__).resolve().parent.parent
    data = args.data or Path(os.environ.get("TURNTREE_DATA", repository.parent / "shared"))
    if not args.synthetic and not (data / "traces").is_dir():
        sys.exit(f"no recorded traces in {data}/traces: pass --data, or --synthetic to do without")

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; CPU time")
    print(" ".join(sys.argv))
    print(f"{'':<51}{'tokens':>8}{'drafted':>8}{'draft':>8}{'commit':>8}{'both':>8}{'aim':>8}")
    print(f"{'data':<22}{'mode':<24}{'batch':>5}" + f"{'/step':>8}" * 2 + f"{'us/row':>8}" * 4)
    rows: list[Row] = []

    def show(turns: list[Turn], name: str, config: ForestConfig) -> None:
        for row in measure(turns, name, config):
            rows.append(row)
            print(row, flush=True)

    show(synthetic(), "synthetic", ForestConfig(end_tokens=frozenset({31})))
    if not args.synthetic:
        for name, dialogues in TRACES.items():
            count = max(1, round(dialogues * args.fraction))
            show(recorded(data / "traces" / f"{name}.npz", count), name, ForestConfig())
        for mode in dict.fromkeys(row.mode for row in rows if row.batch == 1):
            values = [r.tokens_per_step for r in rows if r.mode == mode and r.batch == 1 and r.data in TRACES]
            print(f"{'geometric mean':<22}{mode:<24}{1:>5}{geometric_mean(values):>8.2f}")
    if args.out:
        record = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "command": " ".join(sys.argv),
            "rows": [asdict(row) for row in rows],
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
