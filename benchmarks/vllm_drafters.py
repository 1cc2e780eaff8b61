"""vLLM without drafts, with its n-gram and suffix drafters, with turntree's, and with whole turns used again.

What is played and how: ``trained.side_by_side``. Seconds are those of the engine's steps, drafting included. A step's
scoring of a stored turn counts as a step.

    python benchmarks/vllm_drafters.py [--batches 1 4 16 64] [--json OUT]           # CPU
    python benchmarks/vllm_drafters.py --ways none ours "ours + same_seed" --epochs 2
    python benchmarks/vllm_drafters.py --device cuda --dtype bfloat16 [--model DIR] # GPU; DIR: fixed weights
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trained.side_by_side import compare, parser_of

CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
EPISODES = {1: 48, 4: 128, 16: 256, 64: 512}
DRAFTERS = ("none", "n-gram", "suffix", "ours")
REUSED = ("ours + same_seed", "ours + rejection_sampling", "ours + spec_rl")


def main() -> None:
    parser = parser_of(__doc__, DRAFTERS, REUSED)
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction, default=None)
    args = parser.parse_args()
    for name, value in CPU.items() if args.device == "cpu" else [("VLLM_ENABLE_V1_MULTIPROCESSING", "0")]:
        os.environ.setdefault(name, value)
    if "suffix" in args.ways and importlib.util.find_spec("arctic_inference") is None:
        print("suffix is left out: arctic-inference is not installed", file=sys.stderr)
        args.ways = [way for way in args.ways if way != "suffix"]

    from trained.vllm_player import Stepped

    eager = args.device == "cpu" if args.eager is None else args.eager
    arguments: dict[str, Any] = {"dtype": args.dtype, "enforce_eager": eager, "seed": args.seed}
    if args.device == "cpu":
        arguments["block_size"] = 32  # as engine=vllm_cpu has it
    else:
        arguments["gpu_memory_utilization"] = 0.9 / len(args.ways)

    def start(way: str, folder: Path) -> Stepped:
        return Stepped(way, folder, batch=max(args.batches), arguments=arguments)

    compare(args, start, engine=f"vLLM {version('vllm')}", episodes=EPISODES)


if __name__ == "__main__":
    main()
