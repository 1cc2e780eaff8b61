"""``vllm bench serve`` against vLLM with turntree's drafter and without, where drafts do not pay.

Three servers of one policy: a small one that is drawn at random, whose steps are so short that what a drafter adds to
them shows, or a given model. One has the drafter. One is vLLM as it comes, and one has ``--no-async-scheduling``: vLLM
schedules a step while the one before runs, but not where a drafter is a class, whatever that class does
(``vllm/config/vllm.py``). Random prompts, temperature 1, fixed lengths. Their own benchmark is run at all by turns;
what counts are failed requests and the time per output token, the ratio of each round's medians.

    python benchmarks/vllm_bench_serve.py [--model DIR] --out benchmarks/results/vllm_bench_serve.json

In the environment of vLLM (``scripts/venv.sh vllm-0.28``). Not covered: GPUs, policies whose drafts pay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

from provenance import provenance

from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.engines.sglang.ports import free_port
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
SHAPE = PolicyShape(hidden=512, layers=6, heads=8, intermediate=1536, context=1024)
ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
ONE_WORKER = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The worker in the engine's process, as it is with one GPU; on a CPU vLLM asks another process for drafts."""
START_SECONDS = 600


@contextmanager
def server(model: Path, log: Path, *options: str) -> Iterator[str]:
    """``vllm serve``: its URL, at once; ``wait_for`` it."""
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


def bench(url: str, model: Path, folder: Path, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """What ``vllm bench serve`` writes."""
    lengths = ("--random-input-len", str(args.tokens), "--random-output-len", str(args.tokens), "--ignore-eos")
    load = ("--num-prompts", str(args.prompts), "--max-concurrency", str(args.at_once), "--temperature", "1")
    words = [*VLLM, "bench", "serve", "--base-url", url, "--model", str(model), "--dataset-name", "random", *lengths]
    words += [*load, "--seed", str(seed), "--disable-tqdm", "--save-result", "--result-dir", str(folder)]
    subprocess.run([*words, "--result-filename", "one.json"], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "one.json").read_text())
    return {name: found[name] for name in ("completed", "failed", "median_tpot_ms", "median_ttft_ms")}


def ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[float, ...]:
    """Quartiles of the rounds' ratios of the time per token."""
    pairs = zip(ours, theirs, strict=True)
    return tuple(quantiles([one["median_tpot_ms"] / other["median_tpot_ms"] for one, other in pairs], n=4))


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's own benchmark of servers with and without the drafter.")
    parser.add_argument("--model", type=Path, help="directory in Hugging Face format; without it one drawn at random")
    parser.add_argument("--rounds", type=int, default=16, help="rounds of each server that are counted")
    parser.add_argument("--prompts", type=int, default=16, help="requests of a round")
    parser.add_argument("--at-once", type=int, default=8, help="requests at once")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each prompt, and of each answer")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    drafter = ("--speculative-config", json.dumps(speculative_config(4)))
    drafter += ("--additional-config", json.dumps(DrafterSettings().to_additional_config()))
    options: dict[str, tuple[str, ...]] = {"plain": (), "synchronous": ("--no-async-scheduling",), "drafter": drafter}
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in options}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or save_policy(build_policy(SHAPE), folder / "policy")
        logs = {way: folder / f"{way}.log" for way in rounds}
        with ExitStack() as stack:
            urls = {way: stack.enter_context(server(model, logs[way], *given)) for way, given in options.items()}
            for way, url in urls.items():
                wait_for(url, logs[way])
            for number in range(args.rounds + 1):  # the first round warms up
                for way in sorted(urls, reverse=bool(number % 2)):  # none is always the first
                    found = bench(urls[way], model, folder, number, args)
                    rounds[way] += [found] if number else []
    ratios = {way: ratio(rounds["drafter"], rounds[way]) for way in ("plain", "synchronous")}
    failed = sum(found["failed"] for runs in rounds.values() for found in runs)
    print(f"{args.rounds} rounds of {args.prompts} requests each: {failed} failed; time per token with the drafter")
    for way, (low, middle, high) in ratios.items():
        print(f"  {middle:.3f} of {way} (half of the rounds: {low:.3f} to {high:.3f})")
    if args.out is not None:
        parts = provenance(("turntree", "vllm", "torch"))
        args.out.write_text(
            json.dumps({"ratios": ratios, "failed": failed, "rounds": rounds, "provenance": parts}) + "\n"
        )


if __name__ == "__main__":
    main()
