"""vLLM without drafts, with its n-gram and suffix drafters, with turntree's, and with whole turns used again.

A tiny policy, warm-started and trained a little between epochs, plays the same multi-turn tasks in each epoch, up to
``batch`` dialogues at once. For each batch size all drafters begin with nothing, and the ways take turns after each
part of an epoch, in the opposite order every second time, so that each ratio is of neighbours in time. Seconds are
those of the engine's steps, drafting included. A step's scoring of a stored turn counts as a step.

    python benchmarks/vllm_drafters.py [--batches 1 4 16 64] [--json OUT]           # CPU
    python benchmarks/vllm_drafters.py --ways none ours "ours + replay" --epochs 2
    python benchmarks/vllm_drafters.py --device cuda --dtype bfloat16 [--model DIR] # GPU; DIR: fixed weights
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.cells import Cells

from turntree.agents.evaluation.machine import hardware

CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
EPISODES = {1: 48, 4: 128, 16: 256, 64: 512}
"""Episodes of an epoch by batch size, unless told otherwise."""
DRAFTERS = ["none", "n-gram", "suffix", "ours"]
REUSED = ["ours + replay", "ours + exact", "ours + lenient"]
HOW = (
    "The ways take turns after each part of an epoch, in the opposite order every second time, in one process: other "
    "work on the machine falls on all of them about alike. On a machine that others load, compare cpu_ratio_to_none; "
    "tokens per second and ratio_to_none hold for a quiet one."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way in one epoch at one batch size."""

    batch: int
    epoch: int
    way: str
    tokens_per_second: float = 0.0
    tokens_per_step: float = 0.0
    """Of a request that samples."""
    step_ms: float = 0.0
    """Milliseconds of a step of the engine, the drafter's included."""
    draft_ms_per_step: float = 0.0
    """Milliseconds of it in the drafter."""
    ratio_to_none: float = 0.0
    """Tokens per second against those without drafts in the same epoch."""
    cpu_ratio_to_none: float = 0.0
    """The same per second of processor time, which other work on the machine hardly changes; of no use on a GPU."""
    reward: float = 0.0
    tokens: int = 0
    """Sampled in all."""
    note: str = ""
    """Why there is nothing."""


def missing(way: str) -> str:
    """Why a way cannot run here; empty where it can."""
    if way == "suffix" and importlib.util.find_spec("arctic_inference") is None:
        return "arctic-inference is not installed"
    return ""


def measure(
    args: argparse.Namespace, engines: dict[str, Any], batch: int, places: list[Path], renderer: Any
) -> list[Row]:
    """All ways at one batch size; drafters begin with nothing."""
    from trained.vllm_player import Loop, Spent

    ways = list(engines)
    count = args.episodes or EPISODES.get(batch, 3 * batch)
    samples = min(args.samples, count)
    loop = Loop(renderer, args.env, args.env_kwargs, tasks=-(-count // samples), samples=samples)
    for engine in engines.values():  # threads, kernels and caches of the machine, and the first weights
        engine.forget()
        engine.load(places[0])
        loop.play(engine, batch=batch, first=0, count=min(count, 2 * batch))
        engine.forget()
    part = max(-(-count // args.parts), 2 * batch)
    spent = {(epoch, way): Spent() for epoch in range(len(places)) for way in ways}
    turn = 0
    for epoch, place in enumerate(places):
        for engine in engines.values():
            engine.load(place)
        for first in range(0, count, part):
            turn += 1
            for way in ways[:: 1 if turn % 2 else -1]:
                spent[epoch, way].add(loop.play(engines[way], batch=batch, first=first, count=min(part, count - first)))
    rows = []
    for epoch in range(len(places)):
        for way in args.ways:
            if missing(way):
                rows.append(Row(batch=batch, epoch=epoch + 1, way=way, note=missing(way)))
            else:
                rows.append(_row(batch, epoch, way, spent[epoch, way], spent[epoch, "none"]))
    return rows


def _row(batch: int, epoch: int, way: str, mine: Any, none: Any) -> Row:
    return Row(
        batch=batch,
        epoch=epoch + 1,
        way=way,
        tokens_per_second=round(mine.tokens / mine.seconds, 1),
        tokens_per_step=round(mine.tokens / mine.row_steps, 3),
        step_ms=round(1e3 * mine.seconds / mine.steps, 3),
        draft_ms_per_step=round(1e3 * mine.draft_seconds / mine.steps, 3),
        ratio_to_none=round(mine.tokens / mine.seconds / (none.tokens / none.seconds), 3),
        cpu_ratio_to_none=round(mine.tokens / mine.cpu_seconds / (none.tokens / none.cpu_seconds), 3),
        reward=round(mine.reward, 3),
        tokens=mine.tokens,
    )


def machine(device: str) -> str:
    import torch

    return f"{hardware(device)}, {torch.get_num_threads()} threads"


def show(title: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in (
        "batch",
        "epoch",
        "way",
        "tokens/s",
        "tokens/step",
        "drafter ms/step",
        "ratio to none",
        "by CPU time",
        "reward",
    ):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in rows:
        if row.note:
            table.add_row(str(row.batch), str(row.epoch), row.way, row.note, *[""] * 5)
            continue
        table.add_row(
            str(row.batch), str(row.epoch), row.way, f"{row.tokens_per_second:.0f}", f"{row.tokens_per_step:.2f}",
            f"{row.draft_ms_per_step:.2f}", f"{row.ratio_to_none:.2f}", f"{row.cpu_ratio_to_none:.2f}",
            f"{row.reward:.2f}",
        )  # fmt: skip
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--ways", nargs="+", metavar="WAY", default=DRAFTERS, choices=DRAFTERS + REUSED)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--parts", type=int, default=4, help="of an epoch; the ways take turns after each")
    parser.add_argument("--episodes", type=int, help="of an epoch, the same for all batch sizes")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--layers", type=int, default=9, help="of the widened policy")
    parser.add_argument("--width", type=int, default=4096, help="of its feed-forward parts")
    parser.add_argument("--model", type=Path, help="play these weights in every epoch, with no training between")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="rows of other batch sizes in the file are kept")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the step between two epochs")
    args = parser.parse_args()
    if "none" not in args.ways:
        parser.error("the others are compared with none: name it among the ways")
    args.eager = args.device == "cpu" if args.eager is None else args.eager
    for name, value in CPU.items() if args.device == "cpu" else [("VLLM_ENABLE_V1_MULTIPROCESSING", "0")]:
        os.environ.setdefault(name, value)

    from trained.snapshots import ENV, ENV_KWARGS, snapshots
    from trained.vllm_player import Stepped
    from transformers import AutoTokenizer

    from turntree.agents.loop.renderer import Renderer

    args.env, args.env_kwargs = ENV, ENV_KWARGS
    arguments: dict[str, Any] = {"dtype": args.dtype, "enforce_eager": args.eager, "seed": args.seed}
    if args.device == "cpu":
        arguments["block_size"] = 32  # as engine=vllm_cpu has it
    ways = [way for way in args.ways if not missing(way)]
    if args.device != "cpu":
        arguments["gpu_memory_utilization"] = 0.9 / len(ways)
    title = f"{machine(args.device)}; vLLM {version('vllm')}; {args.dtype}"
    cells = Cells(args.json, machine=title, how=HOW, cell=["batch"])
    with tempfile.TemporaryDirectory() as folder:
        places = [args.model] * args.epochs if args.model else snapshots(
            Path(folder), epochs=args.epochs, tasks=48, samples=4, layers=args.layers, width=args.width,
            learning_rate=args.learning_rate,
        )  # fmt: skip
        renderer = Renderer(AutoTokenizer.from_pretrained(places[0]))
        engines = {way: Stepped(way, places[0], batch=max(args.batches), arguments=arguments) for way in ways}
        for batch in args.batches:
            rows = measure(args, engines, batch, places, renderer)
            show(title, rows)
            cells.put(rows)


if __name__ == "__main__":
    main()
