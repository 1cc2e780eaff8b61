"""Run ``vllm bench serve`` with and without turntree's drafter on traffic where drafts do not pay.

Two servers serve one policy: a small random one, whose short steps make the drafter's overhead visible, or a given
model. Prompts are random, the temperature is 1, and turns end at their length limit. vLLM's own benchmark alternates
between both servers in many short rounds within one process, since a machine's speed changes from minute to minute. The
figures are failed requests and, as the ratio of each round's medians, the time per output token.

    python benchmarks/vllm_bench_serve.py [--model DIR] --out benchmarks/results/vllm_bench_serve.json

Run it in vLLM's environment (``scripts/venv.sh vllm-0.28``). Not covered: GPUs, policies whose drafts pay.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from statistics import quantiles
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep

from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.engines.server_client import free_port
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
SHAPE = PolicyShape(hidden=512, layers=6, heads=8, intermediate=1536, context=1024)
ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
#: a worker in the engine's process, as with one GPU; on a CPU vLLM would ask another process for drafts
ONE_WORKER = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
START_SECONDS = 600


@contextmanager
def server(model: Path, log: Path, *options: str) -> Iterator[str]:
    port = free_port()
    size = ("--max-model-len", str(SHAPE.context), "--max-num-seqs", "32", "--kv-cache-memory-bytes", str(1 << 28))
    words = [*VLLM, "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", *size]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*words, "--enforce-eager", *options], stdout=out, stderr=out, env={**os.environ, **ON_CPU, **ONE_WORKER}
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    sys.exit(f"the server does not answer: {log.read_text(errors='replace')[-2000:]}")


def bench(url: str, model: Path, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    serve = importlib.import_module("vllm.benchmarks.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve.add_cli_args(parser)
    lengths = ("--random-input-len", str(args.tokens), "--random-output-len", str(args.tokens), "--ignore-eos")
    lengths += ("--random-range-ratio", str(args.spread))
    load = ("--num-prompts", str(args.prompts), "--max-concurrency", str(args.at_once), "--temperature", "1")
    words = ["--base-url", url, "--model", str(model), "--dataset-name", "random", *lengths, *load]
    with redirect_stdout(io.StringIO()):
        found = serve.main(parser.parse_args([*words, "--seed", str(seed), "--disable-tqdm"]))
    return {name: float(found[name]) for name in ("completed", "failed", "median_tpot_ms", "median_ttft_ms")}


def summary(ratios: list[float]) -> dict[str, list[float]]:
    """Return the median, the middle half, and the median's 95 % interval by order statistics."""
    middle, ordered = len(ratios) / 2, sorted(ratios)
    reach = 0.98 * len(ratios) ** 0.5
    low, high = max(0, int(middle - reach)), min(len(ratios) - 1, int(middle + reach))
    first, median, third = quantiles(ratios, n=4)
    return {"median": [median], "half": [first, third], "sure": [ordered[low], ordered[high]]}


def main() -> None:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--model", type=Path, help="directory in Hugging Face format; without it one drawn at random")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each server that are counted")
    parser.add_argument("--prompts", type=int, default=16, help="requests of a round")
    parser.add_argument("--at-once", type=int, default=8, help="requests at once")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each prompt, and of each answer")
    parser.add_argument("--spread", type=float, default=0.5, help="of lengths: how much shorter or longer they may be")
    args = parser.parse_args()
    drafter = ("--speculative-config", json.dumps(speculative_config(4)))
    drafter += ("--additional-config", json.dumps(DrafterSettings().to_additional_config()))
    options: dict[str, tuple[str, ...]] = {"plain": (), "drafter": drafter}
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in options}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or save_policy(build_policy(SHAPE), folder / "policy")
        logs = {way: folder / f"{way}.log" for way in rounds}
        with ExitStack() as stack:
            urls = {way: stack.enter_context(server(model, logs[way], *given)) for way, given in options.items()}
            for way, url in urls.items():
                wait_for(url, logs[way])
            for number in range(args.rounds + 2):  # the first two rounds warm up
                for way in sorted(urls, reverse=bool(number % 2)):  # none is always the first
                    found = bench(urls[way], model, number, args)
                    rounds[way] += [found] if number > 1 else []
    pairs = zip(rounds["drafter"], rounds["plain"], strict=True)
    found = summary([ours["median_tpot_ms"] / theirs["median_tpot_ms"] for ours, theirs in pairs])
    failed = sum(found["failed"] for runs in rounds.values() for found in runs)
    said = {name: " to ".join(f"{value:.3f}" for value in values) for name, values in found.items()}
    print(f"{args.rounds} rounds of {args.prompts} requests each: {failed:.0f} failed; the time per token is")
    print(f"{said['median']} of that without the drafter (half of the rounds {said['half']}; with 95 % {said['sure']})")
    about = provenance(("turntree", "vllm", "torch"))
    keep(args.out, {"ratio": found, "failed": failed, "rounds": rounds, "provenance": about})


if __name__ == "__main__":
    main()
