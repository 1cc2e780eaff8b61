"""Tool calls made while their turn is sampled, beside calls that wait for its end.

A dialogue of the calculator; each call takes ``--delay`` seconds, in which the process is free. The policy is of the
demo's kind, trained by some steps of GRPO, as wide as ``--layers`` and ``--width`` make it. The store has one epoch of
the tasks; the second has fresh noise. Each round both ways play the same episodes from the same store, in rotating
order. In the kind ``fork`` the environment is forkable, in ``pure`` its tool is pure, and in ``impure`` neither, so
that no call may run ahead: ``run`` counts what the tool itself was asked, ``calls`` those of the episodes.

    python benchmarks/calls_ahead.py [--batches 4] [--rounds 3] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from common.provenance import provenance
from rich.console import Console
from rich.table import Table
from trained.snapshots import ENV_KWARGS, snapshots
from transformers import AutoTokenizer

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.calls_ahead import CallsAhead
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits, Tool
from turntree.envs.math.arithmetic import Arithmetic
from turntree.envs.math.calculator import one_operation_calculator

KINDS = ("fork", "pure", "impure")
WAYS = ("after", "ahead")


class Slow(Arithmetic):
    """The calculator takes a while, and counts how often it was asked."""

    static_attributes = Arithmetic.static_attributes | {"delay", "asked", "lock"}

    def __init__(self, kind: str, delay: float) -> None:
        super().__init__(min_numbers=4, **{**ENV_KWARGS, "limits": Limits(**ENV_KWARGS["limits"])})
        self.delay = delay
        self.asked = [0]
        self.lock = threading.Lock()

        def calculator(expression: str) -> str:
            """Do one operation on two whole numbers.

            Args:
                expression: Such as 3*4.
            """
            with self.lock:
                self.asked[0] += 1
            time.sleep(self.delay)
            return str(one_operation_calculator(expression))

        self.tools = (Tool(calculator, pure=kind == "pure"),)


class Forkable(Slow):
    """The same; its count is no effect that matters."""

    forkable = True


@dataclass
class Played:
    """The episodes of an epoch."""

    episodes: list[Episode]
    seconds: float
    asked: int
    calls: CallsAhead


def play(
    engine: LocalEngine, renderer: Renderer, args: argparse.Namespace, kind: str, batch: int, epoch: int, ahead: bool
) -> Played:
    """All episodes of an epoch, so many at once."""
    make = Forkable if kind == "fork" else Slow
    envs = [make(kind, args.delay if epoch else 0.0) for _ in range(batch)]
    calls = CallsAhead(min_probability=args.min_probability)

    async def all_() -> list[Episode]:
        places = asyncio.Queue[Slow]()
        for env in envs:
            places.put_nowait(env)

        async def one(task: int, sample: int) -> Episode:
            env = await places.get()
            sampling = Sampling(temperature=1.0, seed=derive_seed(epoch, task, sample))
            try:
                return await rollout(
                    env,
                    engine,
                    renderer,
                    index=task,
                    seed=task,
                    sampling=sampling,
                    calls_ahead=calls if ahead else None,
                )
            finally:
                places.put_nowait(env)

        return await asyncio.gather(*(one(*which) for which in product(range(args.tasks), range(args.samples))))

    began = time.perf_counter()
    episodes = asyncio.run(all_())
    return Played(episodes, time.perf_counter() - began, sum(env.asked[0] for env in envs), calls)


def said(episode: Episode) -> list[Any]:
    """What an episode is, token for token."""
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def measure(
    engine: LocalEngine, renderer: Renderer, args: argparse.Namespace, kind: str, batch: int, store: Path
) -> dict[str, Any]:
    """One kind of environment, both ways."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    total, same, asked, made = CallsAhead(), 0, 0, 0
    for epoch in range(1, args.rounds + 1):
        found = {}
        for way in WAYS[epoch % 2 :] + WAYS[: epoch % 2]:
            assert engine.forest is not None
            engine.forest.restore(store)
            engine.reset_prefix_cache()
            found[way] = play(engine, renderer, args, kind, batch, epoch, way == "ahead")
            seconds[way].append(found[way].seconds)
        after, ahead = found["after"], found["ahead"]
        same += sum(said(one) == said(other) for one, other in zip(after.episodes, ahead.episodes, strict=True))
        asked += ahead.asked
        made += sum(len(message.tool_calls) for one in ahead.episodes for message in one.messages)
        for name in ("made", "used", "wasted", "saved_seconds"):
            setattr(total, name, getattr(total, name) + getattr(ahead.calls, name))
    episodes = args.tasks * args.samples
    rates = {way: episodes / statistics.median(seconds[way]) for way in WAYS}
    return {
        "kind": kind,
        "batch": batch,
        "episodes": episodes,
        "rounds": args.rounds,
        "episodes_per_second": rates,
        "seconds": seconds,
        "times": statistics.median(b / a for a, b in zip(seconds["ahead"], seconds["after"], strict=True)),
        "calls": made,
        "run": asked,
        "ahead": total.made,
        "used": total.used,
        "wasted": total.wasted,
        "saved_seconds": total.saved_seconds,
        "same_episodes": same / (episodes * args.rounds),
    }


def show(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in (
        "kind",
        "at once",
        "episodes/s after",
        "ahead",
        "times",
        "calls",
        "run",
        "ahead",
        "used",
        "wasted",
        "saved s",
        "same",
    ):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for one in rows:
        rates = one["episodes_per_second"]
        table.add_row(
            one["kind"], str(one["batch"]), f"{rates['after']:.2f}", f"{rates['ahead']:.2f}", f"{one['times']:.2f}",
            *(str(one[name]) for name in ("calls", "run", "ahead", "used", "wasted")),
            f"{one['saved_seconds']:.1f}", f"{one['same_episodes']:.0%}",
        )  # fmt: skip
    Console(width=130).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[4], help="episodes at once")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.5, help="of a tool call, seconds")
    parser.add_argument("--min-probability", type=float, default=0.5)
    parser.add_argument("--updates", type=int, default=20, help="steps of GRPO that the policy has behind it")
    parser.add_argument("--layers", type=int, default=24, help="of the widened policy")
    parser.add_argument("--width", type=int, default=4096, help="of its feed-forward parts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about = provenance(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        place = snapshots(
            Path(folder), epochs=2, tasks=24, samples=8, layers=args.layers, width=args.width, steps=args.updates
        )[-1]
        renderer = Renderer(AutoTokenizer.from_pretrained(place))
        config = LocalEngineConfig(max_batch=64, max_context=256, monitors=False, speculation=Speculation())
        with LocalEngine.from_pretrained(place, config=config) as engine:
            play(engine, renderer, args, "fork", 8, 0, ahead=False)
            assert engine.forest is not None
            engine.forest.save(store := Path(folder) / "store.npz")
            rows = [measure(engine, renderer, args, *which, store) for which in product(args.kinds, args.batches)]
    show(rows, f"{about['machine']}; {about['versions']}\n{about['command']}")
    if args.json:
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
