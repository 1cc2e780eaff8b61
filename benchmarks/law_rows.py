"""What an engine takes for rows of log-probabilities of one position, by their length, beside a request of one token.

The ratio rule draws the token at a rejected position from the residual distribution, of which the scoring pass names
the most probable tokens alone. Where they do not settle the draw, a longer row is asked for. The model is a random
Llama of almost no layers with the vocabulary of a large one, so that rows are all that costs.

    python benchmarks/law_rows.py [--vocabulary 151936] [--json OUT]     # in an environment with vLLM; CPU
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from common.provenance import provenance

from turntree.agents.engines.protocol import Sampling, TurnRequest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
PROMPT = tuple(range(1, 60))


async def measure(engine: Any, vocabulary: int, repeats: int) -> dict[str, float]:
    """Milliseconds of each request, the median."""
    sampling = Sampling(max_tokens=8)

    def row(width: int) -> Callable[[int], Awaitable[Any]]:
        return lambda place: engine.score((*PROMPT, place), (5,), sampling, top=width)

    def token(place: int) -> Awaitable[Any]:
        turn: Awaitable[Any] = engine.generate(TurnRequest((*PROMPT, place), Sampling(max_tokens=1, seed=place)))
        return turn

    widths = [width for width in (64, 1024, 16384) if width < vocabulary]
    asked = {"one token": token, **{f"row of {width}": row(width) for width in (*widths, vocabulary)}}
    times: dict[str, list[float]] = {name: [] for name in asked}
    for place in range(100, 101 + repeats):
        for name, ask in asked.items():
            began = time.perf_counter()
            await ask(place)
            times[name].append(1e3 * (time.perf_counter() - began))
    return {name: round(median(taken[1:]), 1) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from tiny_vllm import ENVIRONMENT, save_policy

    os.environ.update(ENVIRONMENT)
    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine

    with tempfile.TemporaryDirectory() as folder:
        config = VllmEngineConfig(
            max_batch=8,
            max_context=128,
            dtype="float32",
            kv_cache_bytes=1 << 26,
            engine_args={"skip_tokenizer_init": True, "block_size": 32},
        )
        with VllmEngine(save_policy(Path(folder), args.vocabulary), config=config) as engine:
            found = asyncio.run(measure(engine, args.vocabulary, args.repeats))
    record = {**provenance(("torch", "vllm")), "milliseconds": found}
    print(json.dumps(record, indent=1))
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
