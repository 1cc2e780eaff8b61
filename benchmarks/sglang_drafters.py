"""Compare SGLang without drafts, with its n-gram drafts and with turntree's, on the same dialogues.

``trained.side_by_side`` describes the dialogues. Batch sizes do not learn from each other: turntree's store separates
them by environment, and SGLang's n-gram corpus is emptied with the cache, as between epochs. All drafts are verified by
the same rule, sample and match. Seconds are wall time of the whole loop, including environment and client; processor
seconds of the engine's scheduler, which runs the passes, hardly depend on other load. Steps and draft widths are those
of turntree's worker.

On the CPU, the kernels are stand-ins in plain PyTorch and Python (``tests/support/cpu_kernels``): they loop over
requests in the attention of trees and over nodes in their verification, unlike a GPU.

    python benchmarks/sglang_drafters.py [--batches 1 4 16 64] [--json OUT]           # CPU
    python benchmarks/sglang_drafters.py --device cuda --dtype bfloat16 [--model DIR] # GPU; DIR: fixed weights
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from trained.side_by_side import Spent, compare, parser_of

from turntree.agents.engines.protocol import Completion, TurnRequest

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
WAYS = ("none", "NGRAM", "ours")
EPISODES = {1: 8, 4: 24, 16: 64, 64: 128}
CONTEXT = 192


class Apart:
    """Separate the dialogues of each batch size, and count."""

    def __init__(self, way: str, model: Path, args: argparse.Namespace) -> None:
        before = set(psutil.Process().children(recursive=True))
        self.engine = opened(way, model, args)
        own = [child for child in psutil.Process().children(recursive=True) if child not in before]
        self.schedulers = [process for process in own if any("scheduler" in part for part in process.cmdline())]
        self.turns = self
        self.row_steps = self.mark = 0
        self.loaded = model

    async def generate(self, request: TurnRequest) -> Completion:
        if request.state is not None:
            request = replace(request, state=replace(request.state, env=str(self.mark)))
        turn: Completion = await self.engine.generate(request)
        self.row_steps += turn.draft.verify_steps
        return turn

    def forget(self) -> None:
        self.mark += 1
        self.engine.reset_prefix_cache()

    def load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        if folder != self.loaded:  # from disk SGLang's own n-gram worker takes none
            self.engine.update_weights(load_file(folder / "model.safetensors").items())
        self.loaded = folder
        self.engine.reset_prefix_cache()

    @contextmanager
    def counting(self, spent: Spent) -> Iterator[None]:
        before, cpu, self.row_steps = self.engine.figures(), self.cpu_seconds(), 0
        began = time.perf_counter()
        yield
        spent.seconds = time.perf_counter() - began
        spent.cpu_seconds, spent.row_steps = self.cpu_seconds() - cpu, self.row_steps
        after = self.engine.figures()
        for name in ("steps", "draft_seconds", "rows", "verified"):
            setattr(spent, name, after.get(name, 0) - before.get(name, 0))

    def cpu_seconds(self) -> float:
        # Of the schedulers, so far.
        return sum(sum(process.cpu_times()[:2]) for process in self.schedulers)

    def close(self) -> None:
        self.engine.close()


def opened(way: str, model: Path, args: argparse.Namespace) -> Any:
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine

    arguments: dict[str, Any] = {"sleep_on_idle": True, "max_total_tokens": max(args.batches) * 512 + 4096}
    if args.device == "cpu":
        from cpu_sglang import CPU_ARGS

        known = ("device", "attention_backend", "sampling_backend", "grammar_backend", "skip_server_warmup")
        arguments |= {name: CPU_ARGS[name] for name in (*known, "mem_fraction_static", "disable_overlap_schedule")}
    else:
        arguments |= {"mem_fraction_static": 0.8 / len(args.ways)}
    if way == "NGRAM":
        arguments |= {
            "speculative_algorithm": "NGRAM",
            "speculative_num_draft_tokens": args.draft_tokens,
            "speculative_ngram_capacity": 100_000,
        }
    config = SglangEngineConfig(
        max_batch=max(args.batches),
        max_context=CONTEXT,
        dtype=args.dtype,
        draft_tokens=args.draft_tokens if way == "ours" else 0,
        seed=args.seed,
        engine_args=arguments,
    )
    return SglangEngine(model, config=config)


def main() -> None:
    parser = parser_of(__doc__, WAYS)
    parser.add_argument("--draft-tokens", type=int, default=8, help="tokens of one request in one pass")
    args = parser.parse_args()
    if args.device == "cpu":
        sys.path.insert(0, str(SUPPORT))
        from cpu_sglang import prepare

        prepare()

    def start(way: str, model: Path) -> Apart:
        return Apart(way, model, args)

    compare(args, start, engine=f"SGLang {version('sglang')}", episodes=EPISODES)


if __name__ == "__main__":
    main()
