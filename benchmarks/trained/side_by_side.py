"""Compare kinds of drafts in one engine: all play the same dialogues, epoch after epoch.

A tiny policy, warm-started and trained a little between epochs (``trained.snapshots``), plays the same multi-turn tasks
in each epoch, up to ``batch`` dialogues at once. For each batch size all ways start with an empty store and alternate
after each part of an epoch, in the opposite order every second time, so each ratio compares neighbours in time.

Heavy imports wait for ``compare``: engines read the environment when they are imported.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from common.cells import Cells
from common.episodes import play_all
from common.script import arguments, show

from turntree.agents.engines.protocol import Engine, Sampling, derive_seed
from turntree.agents.evaluation.machine import hardware

HOW = (
    "The ways take turns after each part of an epoch, in the opposite order every second time: other work on the "
    "machine falls on all of them about alike. On a machine that others load, compare cpu_ratio_to_none, which other "
    "work hardly moves; tokens per second and ratio_to_none hold for a quiet one."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    batch: int
    epoch: int
    way: str
    tokens_per_second: float
    tokens_per_forward_pass: float  #: per request that samples
    step_ms: float  #: including the drafter
    draft_ms_per_step: float  #: in the drafter
    width: float  #: tokens per request and pass, including the last sampled one and padding; 0 if not counted
    ratio_to_none: float  #: tokens per second relative to no drafts in the same epoch
    cpu_ratio_to_none: float  #: as ``ratio_to_none``, per second of processor time; meaningless on a GPU
    reward: float
    tokens: int  #: sampled in all


@dataclass(kw_only=True)
class Spent:
    tokens: int = 0
    row_steps: int = 0  #: requests that sampled, summed over steps
    steps: int = 0  #: of the engine, as far as it counts them
    seconds: float = 0.0
    cpu_seconds: float = 0.0  #: processor time of the engine
    draft_seconds: float = 0.0  #: in the drafter
    rows: int = 0  #: requests of the passes whose tokens are counted
    verified: int = 0  #: tokens of these passes
    rewards: float = 0.0  #: sum over the episodes
    episodes: int = 0

    def add(self, other: Spent) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def row(self, batch: int, epoch: int, way: str, none: Spent) -> Row:
        return Row(
            batch=batch,
            epoch=epoch + 1,
            way=way,
            tokens_per_second=round(self.tokens / self.seconds, 1),
            tokens_per_forward_pass=round(self.tokens / self.row_steps, 3),
            step_ms=round(1e3 * self.seconds / self.steps, 3) if self.steps else 0.0,
            draft_ms_per_step=round(1e3 * self.draft_seconds / self.steps, 3) if self.steps else 0.0,
            width=round(self.verified / self.rows, 2) if self.rows else 0.0,
            ratio_to_none=round(self.tokens / self.seconds / (none.tokens / none.seconds), 3),
            cpu_ratio_to_none=round(self.tokens / self.cpu_seconds / (none.tokens / none.cpu_seconds), 3),
            reward=round(self.rewards / self.episodes, 3),
            tokens=self.tokens,
        )


class Way(Protocol):
    turns: Engine

    def forget(self) -> None:
        """Begin with nothing drafted."""

    def load(self, folder: Path) -> None:
        """Load the weights of the next epoch and drop keys and values."""

    def counting(self, spent: Spent) -> AbstractContextManager[None]:
        """Add the block's cost to ``spent``, except tokens, rewards and episodes."""

    def close(self) -> None:
        """End the engine."""


def parser_of(about: str | None, ways: Sequence[str], further: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the arguments of a comparison.

    Args:
        about: The script's docstring.
        ways: Played by default.
        further: Other available ways.
    """
    parser = arguments(about)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--ways", nargs="+", metavar="WAY", default=ways, choices=[*ways, *further])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--parts", type=int, default=4, help="of an epoch; the ways take turns after each")
    parser.add_argument("--episodes", type=int, help="of an epoch, the same for all batch sizes")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--layers", type=int, default=9, help="of the widened policy")
    parser.add_argument("--width", type=int, default=4096, help="of its feed-forward parts")
    parser.add_argument("--model", type=Path, help="play these weights in every epoch, with no training between")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the step between two epochs")
    return parser


def compare(
    args: argparse.Namespace,
    start: Callable[[str, Path], Way],
    *,
    engine: str,
    episodes: Mapping[int, int],
) -> None:
    """Measure, print and keep all ways at all batch sizes.

    Args:
        args: Of ``parser_of``; rows of other batch sizes in ``json`` are kept.
        start: Starts a way with some weights.
        engine: Name and version.
        episodes: Per epoch by batch size, unless ``args`` sets them; twice the batch size by default.
    """
    if "none" not in args.ways:
        raise SystemExit("the others are compared with none: name it among the ways")
    import torch
    from transformers import AutoTokenizer

    from trained.snapshots import snapshots
    from turntree.agents.loop.renderer import Renderer

    title = f"{hardware(args.device)}, {torch.get_num_threads()} threads; {engine}; {args.dtype}"
    cells = Cells(args.json, machine=title, how=HOW)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        models = [args.model] * args.epochs if args.model else snapshots(
            Path(folder), epochs=args.epochs, tasks=48, samples=4, layers=args.layers, width=args.width,
            learning_rate=args.learning_rate,
        )  # fmt: skip
        renderer = Renderer(AutoTokenizer.from_pretrained(models[0]))
        ways = {way: opened.enter_context(closing(start(way, models[0]))) for way in args.ways}
        for batch in args.batches:
            count = args.episodes or episodes.get(batch, 2 * batch)
            rows = measured(args, ways, batch, count, models, renderer)
            columns = [field.name.replace("_", " ") for field in fields(Row)]
            show(title, columns, map(astuple, rows), words=("way",))
            cells.put(rows)


def measured(
    args: argparse.Namespace,
    ways: Mapping[str, Way],
    batch: int,
    count: int,
    models: Sequence[Path],
    renderer: Any,
) -> list[Row]:
    def played(way: Way, epoch: int, jobs: range) -> Spent:
        return play(
            way, renderer, batch=batch, epoch=epoch, jobs=jobs, samples=min(args.samples, count), seed=args.seed
        )

    for way in ways.values():  # threads, kernels and caches of the machine, and the first weights
        way.forget()
        way.load(models[0])
        played(way, 0, range(min(count, 2 * batch)))
        way.forget()
    parts = min(args.parts, -(-count // batch))
    spent = {(epoch, name): Spent() for epoch in range(len(models)) for name in ways}
    for epoch, model in enumerate(models):
        for way in ways.values():
            way.load(model)
        for part in range(parts):
            jobs = range(count * part // parts, count * (part + 1) // parts)
            for name in list(ways)[:: -1 if (epoch * parts + part) % 2 else 1]:
                spent[epoch, name].add(played(ways[name], epoch, jobs))
    return [one.row(batch, epoch, name, spent[epoch, "none"]) for (epoch, name), one in spent.items()]


def play(way: Way, renderer: Any, *, batch: int, epoch: int, jobs: range, samples: int, seed: int) -> Spent:
    # Samples of a task run side by side; epochs have different noise.
    from trained.snapshots import ENV, ENV_KWARGS
    from turntree.agents.loop.rollout import rollout
    from turntree.agents.verl.episodes.dataset import make_env

    async def one(env: Any, task: int, sample: int) -> Any:
        sampling = Sampling(temperature=1.0, seed=derive_seed(seed, epoch, task, sample))
        return await rollout(env, way.turns, renderer, index=task, seed=task, sampling=sampling)

    envs, spent = [make_env(ENV, ENV_KWARGS) for _ in range(batch)], Spent()
    with way.counting(spent):
        episodes = play_all(envs, (divmod(job, samples) for job in jobs), one)
    for episode in episodes:
        if episode.masked:
            raise RuntimeError(f"an episode failed: {episode.failure}")
        spent.tokens += sum(len(turn.completion.token_ids) for turn in episode.turns)
        spent.rewards += episode.reward
        spent.episodes += 1
    return spent
