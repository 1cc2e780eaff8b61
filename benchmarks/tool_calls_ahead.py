"""Compare speculative tool calls, made before their turn ends, with calls that wait for its end.

Dialogues use the calculator; each call takes ``--delay`` seconds, in which the process is free. The policy is like the
demo's, trained by some steps of GRPO and widened by ``--layers`` and ``--width``. The stores of drafts and of episodes
contain one epoch of the tasks; the second epoch has fresh noise. In each round both ways play the same episodes from
the same stores, in rotating order: ``after`` calls after the turn, ``ahead`` calls what earlier episodes of the task
suggest. In the kind ``fork`` the environment is forkable, in ``pure`` its tool is pure, and in ``impure`` neither, so
no call may run ahead. ``run`` counts the tool's executions, ``calls`` the episodes' calls.

    python benchmarks/tool_calls_ahead.py [--batches 4] [--rounds 3] [--json OUT]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from common.episodes import play_all
from common.provenance import provenance
from common.script import arguments, keep, show, titled
from trained.snapshots import ENV_KWARGS, snapshots
from transformers import AutoTokenizer

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.agents.loop.tool_calls_ahead import ToolCallsAhead
from turntree.envs import Limits, Tool
from turntree.envs.math.arithmetic import Arithmetic
from turntree.envs.math.calculator import one_operation_calculator

KINDS = ("fork", "pure", "impure")
WAYS = ("after", "ahead")
COUNTS = ("made", "used", "wasted", "saved_seconds")


class Slow(Arithmetic):
    """The calculator takes a while and counts its calls."""

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
    forkable = True


@dataclass
class Played:
    episodes: list[Episode]
    seconds: float
    asked: int
    calls: ToolCallsAhead


def play(
    engine: LocalEngine,
    renderer: Renderer,
    args: argparse.Namespace,
    kind: str,
    batch: int,
    epoch: int,
    way: str,
    stored: StoredEpisodes | None = None,
) -> Played:
    stored = copy.deepcopy(stored) if epoch else stored
    make = Forkable if kind == "fork" else Slow
    envs = [make(kind, args.delay if epoch else 0.0) for _ in range(batch)]
    calls = ToolCallsAhead(min_probability=args.min_probability)

    async def one(env: Slow, task: int, sample: int) -> Episode:
        return await rollout(
            env,
            engine,
            renderer,
            index=task,
            seed=task,
            sampling=Sampling(temperature=1.0, seed=derive_seed(epoch, task, sample)),
            stored=stored if way == "ahead" else None,
            tool_calls_ahead=calls if way == "ahead" else None,
        )

    began = time.perf_counter()
    episodes = play_all(envs, product(range(args.tasks), range(args.samples)), one)
    return Played(episodes, time.perf_counter() - began, sum(env.asked[0] for env in envs), calls)


def said(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def measure(
    engine: LocalEngine, renderer: Renderer, args: argparse.Namespace, kind: str, batch: int, store: Path
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    totals = {way: ToolCallsAhead() for way in WAYS}
    same, asked, made = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0), 0
    play(engine, renderer, args, kind, batch, 0, "ahead", past := StoredEpisodes())
    for epoch in range(1, args.rounds + 1):
        found = {}
        for way in WAYS[epoch % len(WAYS) :] + WAYS[: epoch % len(WAYS)]:
            assert engine.forest is not None
            engine.forest.restore(store)
            engine.reset_prefix_cache()
            found[way] = play(engine, renderer, args, kind, batch, epoch, way, past)
            seconds[way].append(found[way].seconds)
        after = found["after"].episodes
        made += sum(len(message.tool_calls) for one in after for message in one.messages)
        for way, one in found.items():
            same[way] += sum(said(a) == said(b) for a, b in zip(after, one.episodes, strict=True))
            asked[way] += one.asked
            for name in COUNTS:
                setattr(totals[way], name, getattr(totals[way], name) + getattr(one.calls, name))
    episodes = args.tasks * args.samples
    rates = {way: episodes / statistics.median(seconds[way]) for way in WAYS}
    return {
        "kind": kind,
        "batch": batch,
        "episodes": episodes,
        "rounds": args.rounds,
        "episodes_per_second": rates,
        "seconds": seconds,
        "times": {
            way: statistics.median(b / a for a, b in zip(seconds[way], seconds["after"], strict=True)) for way in WAYS
        },
        "calls": made,
        "run": asked,
        **{name: {way: getattr(totals[way], name) for way in WAYS} for name in COUNTS},
        "same_episodes": {way: same[way] / (episodes * args.rounds) for way in WAYS},
    }


def cells(one: Mapping[str, Any], way: str) -> tuple[Any, ...]:
    return (
        one["kind"], way, one["batch"], f"{one['episodes_per_second'][way]:.2f}", f"{one['times'][way]:.2f}",
        one["calls"], *(one[name][way] for name in ("run", "made", "used", "wasted")),
        f"{one['saved_seconds'][way]:.1f}", f"{one['same_episodes'][way]:.0%}",
    )  # fmt: skip


def main() -> int:
    parser = arguments(__doc__)
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
    args = parser.parse_args()
    about = provenance(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        model = snapshots(
            Path(folder), epochs=2, tasks=24, samples=8, layers=args.layers, width=args.width, steps=args.updates
        )[-1]
        renderer = Renderer(AutoTokenizer.from_pretrained(model))
        config = LocalEngineConfig(max_batch=64, max_context=256, monitors=False, speculation=Speculation())
        with LocalEngine.from_pretrained(model, config=config) as engine:
            play(engine, renderer, args, "fork", 8, 0, "after")
            assert engine.forest is not None
            engine.forest.save(store := Path(folder) / "store.npz")
            rows = []
            for which in product(args.kinds, args.batches):
                rows.append(measure(engine, renderer, args, *which, store))
                keep(args.json, {**about, "rows": rows})
    columns = ("at once", "episodes/s", "times", "calls", "run", "ahead", "used", "wasted", "saved s", "same")
    shown = (cells(*which) for which in product(rows, WAYS))
    show(titled(about), ("kind", "calls made", *columns), shown, words=("kind", "calls made"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
