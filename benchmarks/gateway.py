"""Measure the gateway under load, and its cost compared with calling its engine directly.

Load: concurrent clients play streamed dialogues of three turns over HTTP until the time is up. Figures are errors, time
to the first byte and to the first text, and the server's memory growth, from its third to its last quarter. The server
holds 256 sessions and 1,024 drafting tokens, and ten times as many waiting, so all are full by then. Cost: the same
requests and seeds alternate between the gateway (in its own process) and the engine (in this process), with a tiny
policy and without drafts. Figures are the difference in seconds per request and in CPU time of the engine's process,
which other load hardly changes. torch has one thread: a second would wait at every small operation for the core of the
client or event loop.

    python benchmarks/gateway.py --seconds 60 --clients 64 --out benchmarks/results/gateway.json

Not covered: vLLM and SGLang, and clients on other machines.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import aiohttp
from common.provenance import provenance
from common.script import arguments, keep

from turntree.agents.demo.policy import build_policy, save_policy
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.evaluation.checkpoint import Checkpoint
from turntree.agents.loop.renderer import Renderer

CONTEXT, BATCH, TOKENS, TURNS = 256, 16, 16, 3
SESSIONS, STORED = 256, 1024
Ask = Callable[[int], Awaitable[None]]


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[str, int]]:
    words = ["serve", str(model), "--port", "0", "--name", "tiny", "--max-context", str(CONTEXT)]
    command = [sys.executable, "-m", "turntree.agents.cli", *words, "--max-batch", str(BATCH), *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as process:
        try:
            assert process.stdout is not None, "started with a pipe"
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()
    if process.returncode:
        sys.exit(f"the server ended with status {process.returncode}")


def memory(pid: int) -> float:
    # Resident MiB.
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def body(messages: list[dict[str, str]], seed: int, *, stream: bool) -> dict[str, Any]:
    return {"model": "tiny", "messages": messages, "max_tokens": TOKENS, "seed": seed, "stream": stream}


async def play(http: aiohttp.ClientSession, url: str, seed: int, heard: dict[str, list[float]]) -> None:
    messages: list[dict[str, str]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{seed % 97}+{turn}"})
        began, text, first = time.perf_counter(), "", True
        async with http.post(f"{url}/chat/completions", json=body(messages, seed, stream=True)) as answer:
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {await answer.text()}")
            async for line in answer.content:
                if first:
                    heard["first_byte"].append(time.perf_counter() - began)
                    first = False
                piece = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                if "error" in piece:
                    raise RuntimeError(str(piece["error"]))
                delta = piece["choices"][0]["delta"].get("content", "") if piece else ""
                if delta and not text:
                    heard["first_text"].append(time.perf_counter() - began)
                text += delta
        heard["answer"].append(time.perf_counter() - began)
        messages.append({"role": "assistant", "content": text})


async def load(url: str, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    heard: dict[str, list[float]] = {"first_byte": [], "first_text": [], "answer": []}
    errors: list[str] = []
    sizes: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        seed = number
        while time.perf_counter() < end:
            try:
                await play(http, url, seed, heard)
            except (RuntimeError, aiohttp.ClientError, ValueError) as error:
                errors.append(str(error))
            seed += clients

    async def watch() -> None:
        while time.perf_counter() < end:
            sizes.append(memory(pid))
            await asyncio.sleep(seconds / 60)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(watch(), *map(client, range(clients)))
    quarter = len(sizes) // 4
    found: dict[str, Any] = {"answers": len(heard["answer"]), "errors": len(errors), "first_errors": errors[:3]}
    for name, values in heard.items():
        ranked = sorted(values)
        found[f"{name}_p50"], found[f"{name}_p99"] = (ranked[int(len(ranked) * share)] for share in (0.5, 0.99))
    before, after = mean(sizes[-2 * quarter : -quarter]), mean(sizes[-quarter:])
    return found | {"memory_mib": sizes, "memory_growth_mib": after - before}


async def round_of(ask: Ask, at_once: int, count: int, pid: int) -> tuple[float, float, float]:
    """Return the seconds of ``count`` requests, ``at_once`` at a time, the mean request's, and a process's CPU time."""
    times: list[float] = []
    left = iter(range(count))

    async def worker() -> None:
        for seed in left:
            began = time.perf_counter()
            await ask(seed)
            times.append(time.perf_counter() - began)

    began, used = time.perf_counter(), cpu_seconds(pid)
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return time.perf_counter() - began, mean(times), cpu_seconds(pid) - used


async def cost(
    url: str, pid: int, engine: LocalEngine, renderer: Renderer, rounds: int, at_once: int
) -> dict[str, Any]:
    def messages(seed: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{seed % 97}+{seed % 7}"}]

    async def over_http(seed: int) -> None:
        async with http.post(f"{url}/chat/completions", json=body(messages(seed), seed, stream=False)) as answer:
            said[seed] = (await answer.json())["choices"][0]["message"]["content"]

    async def directly(seed: int) -> None:
        sampling = Sampling(max_tokens=TOKENS, seed=seed, stop_token_ids=renderer.stop_token_ids)
        done = await engine.generate(TurnRequest(renderer.initial(messages(seed)), sampling))
        heard[seed] = renderer.decode(done.token_ids)

    said: dict[int, str] = {}
    heard: dict[int, str] = {}
    ways: dict[str, tuple[Ask, int]] = {"gateway": (over_http, pid), "direct": (directly, os.getpid())}
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    count = 8 * at_once
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for number in range(rounds + 1):  # the first round fills caches, and is not counted
            for name, (ask, process) in ways.items():
                figure = await round_of(ask, at_once, count, process)
                if number:
                    figures[name].append(figure)
    pairs = [*zip(figures["gateway"], figures["direct"], strict=True)]
    return {
        "same_texts": said == heard,
        "rounds": figures,
        "extra_ms_a_request": 1e3 * median((g[0] - d[0]) / count for g, d in pairs),
        "extra_ms_of_latency": 1e3 * median(g[1] - d[1] for g, d in pairs),
        "extra_cpu_ms_a_request": 1e3 * median((g[2] - d[2]) / count for g, d in pairs),
        "latency_ms": {name: 1e3 * median(row[1] for row in rows) for name, rows in figures.items()},
        "cpu_ms_a_request": {name: 1e3 * median(row[2] / count for row in rows) for name, rows in figures.items()},
    }


def main() -> None:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--clients", type=int, default=64, help="clients at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the load")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each way that are counted")
    parser.add_argument("--at-once", type=int, default=16, help="requests at once in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save_policy(build_policy(), Path(folder) / "policy")
        limits = ("--max-requests", str(max(args.clients, args.at_once)))
        with server(model, *limits, "--max-sessions", str(SESSIONS), "--max-stored-tokens", str(STORED)) as (url, pid):
            loaded = asyncio.run(load(url, pid, args.clients, args.seconds))
        renderer = Renderer(Checkpoint.open(str(model)).tokenizer, cached=256)  # as the gateway's
        config = LocalEngineConfig(max_batch=BATCH, max_context=CONTEXT, speculation=None, threads=1)
        with (
            server(model, *limits, "--no-speculate") as (url, pid),
            LocalEngine.from_pretrained(model, config=config) as engine,
        ):
            compared = asyncio.run(cost(url, pid, engine, renderer, args.rounds, args.at_once))
    print(f"{args.clients} clients, {args.seconds:g} s: {loaded['answers']} answers, {loaded['errors']} errors")
    for name in ("first_byte", "first_text", "answer"):
        print(f"{name:<12} p50 {1e3 * loaded[name + '_p50']:8.1f} ms  p99 {1e3 * loaded[name + '_p99']:8.1f} ms")
    print(f"memory grew by {loaded['memory_growth_mib']:.1f} MiB from {loaded['memory_mib'][-1]:.0f}")
    print(
        f"{args.at_once} at once: {compared['extra_ms_a_request']:.2f} ms more a request, "
        f"{compared['extra_ms_of_latency']:.2f} ms of latency, {compared['extra_cpu_ms_a_request']:.2f} of CPU time; "
        f"same texts: {compared['same_texts']}"
    )
    about = provenance(("turntree", "torch", "starlette", "uvicorn", "uvloop"))
    keep(args.out, {"load": loaded, "cost": compared, "provenance": about})


if __name__ == "__main__":
    main()
