"""SGLang without drafts, with its own n-gram drafts and with turntree's, on the same dialogues.

A tiny policy, warm-started and trained a little between epochs, plays the same multi-turn tasks in each epoch, up to
``batch`` dialogues at once. The ways take turns after each part of an epoch, in the opposite order every second time,
so that each ratio is of neighbours in time. Batch sizes do not learn from each other: turntree's store keeps them apart
by environment, and SGLang's n-gram corpus is emptied whenever the cache is, as it is between epochs. Drafts of all ways
are verified by the same rule, sample and match. Seconds are wall time of the whole loop, environment and client
included; seconds of processors in the engine's scheduler, which runs the passes, hardly depend on other work.

On the CPU the kernels are stand-ins in plain PyTorch and Python (``tests/support/cpu_kernels``): a loop over requests
in the attention of trees, and one over nodes in their verification, which no GPU has.

    python benchmarks/sglang_drafters.py [--batches 1 4 16 64] [--json OUT]           # CPU
    python benchmarks/sglang_drafters.py --device cuda --dtype bfloat16 [--model DIR] # GPU; DIR: fixed weights
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import psutil
from common.cells import Cells
from vllm_drafters import machine

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
WAYS = ("none", "NGRAM", "ours")
EPISODES = {1: 8, 4: 24, 16: 64, 64: 128}
"""Episodes of an epoch by batch size, unless told otherwise."""
CONTEXT = 192
HOW = (
    "The ways take turns after each part of an epoch, in the opposite order every second time: other work on the "
    "machine falls on all of them. Compare ratios; tokens per second hold for this run alone. cpu_ratio_to_none "
    "compares tokens per second that processors spent in the engine's scheduler, which other work hardly moves."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way in one epoch at one batch size."""

    batch: int
    epoch: int
    way: str
    tokens: int
    """Sampled in all."""
    tokens_per_second: float
    tokens_per_step: float
    """Of a request that samples."""
    draft_ms_per_step: float
    """Milliseconds of a pass in turntree's drafter."""
    width: float
    """Tokens of a request in a pass of turntree's worker, the last sampled one and padding included."""
    ratio_to_none: float
    """Tokens per second of wall time against those without drafts in the same epoch."""
    cpu_ratio_to_none: float
    """The same of processor time."""
    reward: float


@dataclass(kw_only=True)
class Spent:
    """What some episodes cost."""

    tokens: int = 0
    """Sampled."""
    row_steps: int = 0
    """Requests that sampled, summed over passes."""
    seconds: float = 0.0
    """Of the loop."""
    cpu_seconds: float = 0.0
    """Of processors in the engine's scheduler, which runs the passes: what is left of the time alone on a machine."""
    steps: int = 0
    """Passes of turntree's worker."""
    draft_seconds: float = 0.0
    """Spent there on drafts."""
    rows: int = 0
    """Requests of these passes."""
    verified: int = 0
    """Tokens of these passes."""
    reward: float = 0.0
    """Sum over the episodes."""
    episodes: int = 0


class Apart:
    """An engine that keeps the dialogues of a batch size apart, and counts."""

    def __init__(self, engine: Any, processes: list[psutil.Process]) -> None:
        self.engine = engine
        self.schedulers = [process for process in processes if any("scheduler" in part for part in process.cmdline())]
        self.spent = Spent()
        self.mark = ""

    def cpu_seconds(self) -> float:
        """Of the schedulers, so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self.schedulers)

    async def generate(self, request: TurnRequest) -> Completion:
        if request.state is not None:
            request = replace(request, state=replace(request.state, env=self.mark))
        turn: Completion = await self.engine.generate(request)
        self.spent.tokens += len(turn.token_ids)
        self.spent.row_steps += turn.draft.verify_steps
        return turn


def start(way: str, model: Path, args: argparse.Namespace) -> Apart:
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine

    arguments: dict[str, Any] = {"sleep_on_idle": True, "max_total_tokens": max(args.batches) * 512 + 4096}
    if args.device == "cpu":
        from cpu_sglang import CPU_ARGS

        known = ("device", "attention_backend", "sampling_backend", "grammar_backend", "skip_server_warmup")
        arguments |= {name: CPU_ARGS[name] for name in (*known, "mem_fraction_static", "disable_overlap_schedule")}
    else:
        arguments |= {"mem_fraction_static": 0.8 / len(WAYS)}
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
    before = set(psutil.Process().children(recursive=True))
    engine = SglangEngine(model, config=config)
    return Apart(engine, [child for child in psutil.Process().children(recursive=True) if child not in before])


def play(engine: Apart, renderer: Any, *, batch: int, jobs: range, samples: int, seed: int) -> Spent:
    """Episode ``job`` of ``jobs``, seeded by ``seed + job``, is the same whichever way plays it."""
    from trained.snapshots import ENV, ENV_KWARGS

    from turntree.agents.loop.rollout import rollout
    from turntree.agents.verl.episodes.dataset import make_env

    left = iter(jobs)
    spent = engine.spent

    async def one() -> None:
        env = make_env(ENV, ENV_KWARGS)
        for job in left:
            task = job // samples
            sampling = Sampling(seed=seed + job)
            episode = await rollout(env, engine, renderer, index=task, seed=task, sampling=sampling)
            if episode.masked:
                raise RuntimeError(f"an episode failed: {episode.failure}")
            spent.reward += episode.reward
            spent.episodes += 1

    async def all_() -> None:
        await asyncio.gather(*(one() for _ in range(batch)))

    engine.mark = f"batch {batch}"
    before, cpu = engine.engine.figures(), engine.cpu_seconds()
    began = time.perf_counter()
    asyncio.run(all_())
    spent.seconds += time.perf_counter() - began
    spent.cpu_seconds += engine.cpu_seconds() - cpu
    after = engine.engine.figures()
    for name in ("steps", "draft_seconds", "rows", "verified"):
        setattr(spent, name, getattr(spent, name) + after.get(name, 0) - before.get(name, 0))
    return spent


def measure(args: argparse.Namespace, places: list[Path], renderer: Any) -> list[Row]:
    import sglang
    from safetensors.torch import load_file

    title = f"{machine(args.device)}; SGLang {sglang.__version__}; {args.dtype}"
    cells = Cells(args.json, machine=title, how=HOW, cell=["batch", "epoch"])
    engines = {way: start(way, places[0], args) for way in WAYS}
    rows = []
    try:
        for engine in engines.values():  # threads, kernels and caches of the machine
            play(engine, renderer, batch=2, jobs=range(2), samples=1, seed=args.seed)
        for epoch, place in enumerate(places):
            if epoch:
                weights = load_file(place / "model.safetensors")  # from disk SGLang's own n-gram worker takes none
                for engine in engines.values():
                    engine.engine.update_weights(weights.items())
            for batch in args.batches:
                count = args.episodes or EPISODES.get(batch, 2 * batch)
                for engine in engines.values():
                    engine.engine.reset_prefix_cache()
                    engine.spent = Spent()
                for part in range(parts := min(args.parts, -(-count // batch))):
                    jobs = range(count * part // parts, count * (part + 1) // parts)
                    for way in WAYS[:: 1 if (epoch + part) % 2 else -1]:
                        seed = args.seed + 10_000 * (epoch + 1)
                        play(engines[way], renderer, batch=batch, jobs=jobs, samples=args.samples, seed=seed)
                none = engines["none"].spent
                rows += [_row(batch, epoch, way, engines[way].spent, none) for way in WAYS]
                show(title, rows[-len(WAYS) :])
                cells.put(rows)  # a run that is cut short has what it measured
    finally:
        for engine in engines.values():
            engine.engine.close()
    return sorted(rows, key=lambda row: (row.batch, row.epoch))


def _row(batch: int, epoch: int, way: str, mine: Spent, none: Spent) -> Row:
    return Row(
        width=round(mine.verified / mine.rows, 2) if mine.rows else 0.0,
        batch=batch,
        epoch=epoch + 1,
        way=way,
        tokens=mine.tokens,
        tokens_per_second=round(mine.tokens / mine.seconds, 1),
        tokens_per_step=round(mine.tokens / mine.row_steps, 3),
        draft_ms_per_step=round(1e3 * mine.draft_seconds / mine.steps, 3) if mine.steps else 0.0,
        ratio_to_none=round(mine.tokens / mine.seconds / (none.tokens / none.seconds), 3),
        cpu_ratio_to_none=round(mine.tokens / mine.cpu_seconds / (none.tokens / none.cpu_seconds), 3),
        reward=round(mine.reward / mine.episodes, 3),
    )


def show(title: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in (field.name for field in fields(Row)):
        table.add_column(name.replace("_", " "), justify="left" if name == "way" else "right")
    for row in rows:
        table.add_row(*map(str, asdict(row).values()))
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--episodes", type=int, help="of an epoch, the same for all batch sizes")
    parser.add_argument("--parts", type=int, default=4, help="of an epoch, after which the next way plays")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--draft-tokens", type=int, default=8, help="tokens of one request in one pass")
    parser.add_argument("--layers", type=int, default=9, help="of the widened policy")
    parser.add_argument("--width", type=int, default=4096, help="of its feed-forward parts")
    parser.add_argument("--model", type=Path, help="play these weights in every epoch, with no training between")
    parser.add_argument("--snapshots", type=Path, help="keep the policies here, or play those that are there")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="rows of other batch sizes and epochs in the file are kept")
    args = parser.parse_args()
    if args.device == "cpu":
        sys.path.insert(0, str(SUPPORT))
        from cpu_sglang import prepare

        prepare()

    from trained.snapshots import snapshots
    from transformers import AutoTokenizer

    from turntree.agents.loop.renderer import Renderer

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.snapshots or Path(temporary)
        places = [args.model] * args.epochs if args.model else sorted(folder.glob("epoch*"))[: args.epochs]
        if len(places) < args.epochs:
            sizes = {"layers": args.layers, "width": args.width}
            places = snapshots(folder, epochs=args.epochs, tasks=48, samples=4, **sizes)
        renderer = Renderer(AutoTokenizer.from_pretrained(places[0]))
        rows = measure(args, places, renderer)
    show("all", rows)


if __name__ == "__main__":
    main()
