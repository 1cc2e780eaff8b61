"""Earlier rollouts used again: drafts from trees, seeded replay, SPEC-RL exact and lenient, and their combinations.

Costs. One policy is trained by GRPO over epochs of the same tasks. At every step every way plays the same tasks with
the same weights, in rotating order; the weights follow the episodes of ``none``. So ways differ in what they cost,
and not in what they were asked; a model that is given plays small sums (``reusing.sums``). Tokens per pass count all
tokens of the episodes, reused ones too, by runs of the model; engine seconds are the engine's own steps, wall seconds
add all that is around them. Since the policy is not trained on the other ways' own turns, their tokens are better than
the level that they are marked with.

Acceptance. For turns of the first step: how probable it is that a token stays in a later epoch, by the number K of
most probable tokens that are recorded, and what that costs in exactness (total variation), for the rule used here and
for the one that also uses the drawn token's own probability.

With ``--engine`` every way is a real training by verl in that engine instead (``reusing.engines``).

    python benchmarks/reuse.py [--epochs 5] [--tasks 16] [--model DIR] [--json OUT]
    python benchmarks/reuse.py --engine local|vllm|sglang [--help]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch
from common.provenance import provenance
from common.script import arguments, keep, show, titled
from reusing import engines as reuse_engines
from reusing.acceptance import Acceptance, Recorded
from reusing.ways import WAYS, Way, total
from trained.training import Player, Setting, Trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.local import LocalEngineConfig
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.loop.renderer import Renderer

TINY: dict[str, Any] = {
    "tool_format": "compact",
    "system_prompt": "",
    "limits": {"max_turns": 6, "max_turn_tokens": 16, "max_context_tokens": 128},
}
GIVEN: dict[str, Any] = {
    "system_prompt": "",
    "limits": {"max_turns": 2, "max_turn_tokens": 20, "max_context_tokens": 160},
}


class Bench:
    """A policy that is trained, and the same policy in engines."""

    def __init__(self, args: argparse.Namespace, names: list[str]) -> None:
        folder = args.model or str(warm_started_policy(seed=0))
        self.setting = Setting(
            env="reusing.sums:Sums" if args.model else "turntree/Arithmetic-v0",
            env_kwargs=GIVEN if args.model else TINY,
            tasks=args.tasks,
            batch=args.batch,
            samples=args.samples,
            learning_rate=args.learning_rate or (1e-5 if args.model else 5e-4),
        )
        self.player = Player(self.setting, Renderer(AutoTokenizer.from_pretrained(folder)))
        self.trainer = Trainer(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), self.setting)
        policy = Policy.load(folder, dtype="float32", device="cpu")
        config = LocalEngineConfig(
            max_batch=min(args.max_batch, args.batch * args.samples),
            max_context=160 if args.model else 128,
            threads=args.threads,
        )
        self.ways = {name: Way(name, policy, config, bias=args.bias, top_k=args.top_k) for name in names}

    def learn(self, episodes: Any) -> None:
        self.trainer.update(episodes)
        named = self.trainer.named()
        for way in self.ways.values():
            way.update(named)

    def close(self) -> None:
        for way in self.ways.values():
            way.close()


def costs(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Acceptance]]:
    """One row per way and epoch, and the acceptance by K after each epoch."""
    bench = Bench(args, args.ways)
    rows: list[dict[str, Any]] = []
    acceptance: list[Acceptance] = []
    recorded: Recorded | None = None
    try:
        if args.warm_up:
            for way in bench.ways.values():
                way.play(bench.player, 0, seed=args.seed + 1)
            bench.close()
            bench = Bench(args, args.ways)
        for epoch in range(args.epochs):
            spent: dict[str, list[Any]] = {name: [] for name in args.ways}
            for step in range(epoch * bench.setting.steps_per_epoch, (epoch + 1) * bench.setting.steps_per_epoch):
                turn = step % len(args.ways)
                for name in args.ways[turn:] + args.ways[:turn]:
                    episodes, cost = bench.ways[name].play(bench.player, step, args.seed)
                    spent[name].append(cost)
                    if name == args.ways[0]:
                        sampled = episodes
                recorded = recorded or Recorded.of(bench.ways[args.ways[0]].engine, sampled, args.acceptance_turns)
                bench.learn(sampled)
            rows += [{"way": name, "epoch": epoch + 1, **total(spent[name])} for name in args.ways]
            if recorded is not None:
                acceptance += recorded.compare(bench.ways[args.ways[0]].engine, epoch + 1)
            print(f"epoch {epoch + 1} of {args.epochs}", file=sys.stderr, flush=True)
    finally:
        bench.close()
    return rows, acceptance


def cost_cells(row: dict[str, Any], plain: dict[int, float]) -> tuple[Any, ...]:
    """A row of the table; ``plain`` are the engine's seconds without drafts by epoch."""
    worst: dict[str, float] = {}
    for name, z in (score for scores in row["z"] for score in scores.items()):
        short = name.removeprefix("exactness/").removesuffix("_z")
        worst[short] = max(worst.get(short, 0.0), abs(z))
    ratio = plain.get(row["epoch"], float("nan")) / row["engine_seconds"]
    return (
        row["way"], row["epoch"], f"{row['tokens_per_pass']:.1f}", f"{row['tokens_per_request_pass']:.2f}",
        f"{row['reused_share']:.0%}", f"{row['engine_seconds']:.2f}", f"{ratio:.2f}", f"{row['wall_seconds']:.2f}",
        ", ".join(f"{name} {z:.1f}" for name, z in worst.items()),
    )  # fmt: skip


def report(rows: list[dict[str, Any]], acceptance: list[Acceptance], title: str) -> None:
    """Print both tables."""
    plain = {row["epoch"]: row["engine_seconds"] for row in rows if row["way"] == "none"}
    rows = sorted(rows, key=lambda row: (list(WAYS).index(row["way"]), row["epoch"]))
    columns = ("way", "epoch", "tokens/pass", "tokens/request pass", "reused", "engine s", "none by it", "wall s", "z")
    show(title, columns, (cost_cells(row, plain) for row in rows), words=("way", "z"))
    columns = ("epochs later", "K", "stays", "all tokens known", "TV of the law", "TV with q of all drawn")
    cells = (
        (
            row.epoch,
            row.k,
            f"{row.kept:.3f}",
            f"{row.kept_by_all:.3f}",
            f"{row.distance:.1e}",
            f"{row.naive_distance:.1e}",
        )
        for row in acceptance
    )
    show("how probable it is that a stored token stays, and what K costs in exactness", columns, cells)


def main() -> int:
    if any(argument.startswith("--engine") for argument in sys.argv[1:]):
        return reuse_engines.main()
    parser = arguments(__doc__)
    parser.add_argument("--model", help="folder or id of a Hugging Face model; without it the demo's policy")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=16, help="tasks of an epoch")
    parser.add_argument("--batch", type=int, default=8, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--learning-rate", type=float, help="5e-4 for the demo's policy, 1e-5 for a given model")
    parser.add_argument("--max-batch", type=int, default=64, help="requests that decode at once")
    parser.add_argument("--bias", type=float, default=0.5, help="logarithm of the lenience")
    parser.add_argument("--top-k", type=int, default=64, help="most probable tokens that are recorded")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--warm-up", action=argparse.BooleanOptionalAction, default=True, help="play a step before time is taken"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--acceptance-turns", type=int, default=40, help="turns that acceptance by K is taken from")
    args = parser.parse_args()
    if args.tasks % args.batch:
        parser.error(f"--tasks must be a multiple of --batch, got {args.tasks} and {args.batch}")
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    rows, acceptance = costs(args)
    about = {**provenance(["torch"]), "seconds": time.perf_counter() - start}
    report(rows, acceptance, titled(about))
    keep(args.json, {**about, "costs": rows, "acceptance": [row._asdict() for row in acceptance]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
