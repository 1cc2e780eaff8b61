"""Compare reusing a stored episode turn by turn and in one pass, with any engine.

A dialogue of ``--turns`` turns poses one sum after another; each reply, the calculator's or the next sum, takes
``--delay`` seconds. The policy is like the demo's, widened by ``--layers`` and ``--width``. ``sampled`` reuses nothing;
``turn by turn`` replays each stored turn when it is requested; ``in one pass`` starts all passes of an episode with its
first turn and makes its tool calls in parallel. Each round every way plays the same episodes, in rotating order: first
under the weights that sampled them, then after one step of GRPO. Earlier keys and values are dropped. ``passes waited
for`` counts turns whose pass began when they were requested; ``whole`` is the share of turns that were reproduced
whole.

    python benchmarks/whole_episodes.py [--engine local|vllm|sglang] [--batches 1 8] [--rounds 3] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from common.episodes import play_all
from common.provenance import provenance
from common.script import arguments, keep, show, titled
from trained.snapshots import ENV_KWARGS, snapshots
from transformers import AutoModelForCausalLM, AutoTokenizer

from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.envs import Limits, Message, Reply, Role
from turntree.envs.math.arithmetic import Arithmetic

WAYS = ("sampled", "turn by turn", "in one pass")
WEIGHTS = ("unchanged", "after a step")


class Sums(Arithmetic):
    """Pose one sum after another; a reply takes a while, during which the process is free."""

    forkable = True
    static_attributes = Arithmetic.static_attributes | {"delay"}

    def __init__(self, *, turns: int, delay: float) -> None:
        limits = Limits(max_turns=turns, max_turn_tokens=16, max_context_tokens=256)
        super().__init__(**{**ENV_KWARGS, "limits": limits})
        self.delay = delay

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.delay)
        return super().step(action)

    def reply(self, message: Message) -> Reply:
        ended = super().reply(message)
        said = sum(earlier.role is Role.ASSISTANT for earlier in self.messages)
        sum_ = self.task(1000 * self.current_task.metadata.get("index", 0) + said).prompt
        return Reply(messages=(Message(role=Role.USER, content=sum_),), reward=ended.reward)


@dataclass(frozen=True)
class Setting:
    renderer: Renderer
    batch: int
    turns: int
    episodes: int
    delay: float


@dataclass
class Way:
    name: str
    engine: Any
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WEIGHTS})
    turns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))
    waited: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))
    whole: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))

    def forget(self) -> None:
        early = self.name == "in one pass"
        config = ReuseConfig(mode=ReuseMode.NONE if self.name == "sampled" else ReuseMode.SAME_SEED, early=early)
        self.reuse = PrefixReuse(self.engine, config, vocabulary=self.engine.vocabulary, max_context=256, seed=0)
        self.stored = StoredEpisodes() if early else None

    def play(self, setting: Setting) -> list[Episode]:
        envs = [Sums(turns=setting.turns, delay=setting.delay) for _ in range(setting.batch)]

        async def one(env: Sums, index: int, _: int) -> Episode:
            sampling = Sampling(temperature=1.0, seed=index)
            renderer, stored = setting.renderer, self.stored
            return await rollout(env, self.reuse, renderer, index=index, seed=index, sampling=sampling, stored=stored)

        return play_all(envs, ((index, 0) for index in range(setting.episodes)), one)

    def timed(self, setting: Setting, weights: str) -> list[Episode]:
        self.engine.reset_prefix_cache()
        before = asdict(self.reuse.stats)
        began = time.perf_counter()
        episodes = self.play(setting)
        self.seconds[weights].append(time.perf_counter() - began)
        spent = {name: value - before[name] for name, value in asdict(self.reuse.stats).items()}
        turns = sum(len(episode.turns) for episode in episodes)
        self.turns[weights] += turns
        self.waited[weights] += turns - spent["early_used"]
        self.whole[weights] += spent["whole"]
        return episodes


def load(engine: Any, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine.update_weights(list(model.state_dict().items()))


def measure(engine: Any, folders: Sequence[Path], setting: Setting, rounds: int) -> list[dict[str, Any]]:
    ways = [Way(name, engine) for name in WAYS]
    same = 0
    for round_ in range(rounds):
        load(engine, folders[0])
        for way in ways:
            way.forget()
            first = way.play(setting)
            way.reuse.close_step()
        turn = round_ % len(ways)
        for weights, folder in zip(WEIGHTS, folders, strict=True):
            load(engine, folder)
            for way in ways[turn:] + ways[:turn]:
                again = way.timed(setting, weights)
                way.reuse.close_step()
                if (weights, way.name) == (WEIGHTS[0], WAYS[-1]):
                    same += sum(said(one) == said(other) for one, other in zip(first, again, strict=True))
    share = same / (rounds * setting.episodes)
    return [row(setting, way, weights, ways, share) for weights, way in product(WEIGHTS, ways)]


def said(episode: Episode) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in episode.turns]


def row(setting: Setting, way: Way, weights: str, ways: Sequence[Way], same: float) -> dict[str, Any]:
    seconds = {other.name: statistics.median(other.seconds[weights]) for other in ways}
    played = setting.episodes * len(way.seconds[weights])
    return {
        "batch": setting.batch,
        "turns": way.turns[weights] / played,
        "weights": weights,
        "way": way.name,
        "episodes": setting.episodes,
        "seconds": seconds[way.name],
        "least_seconds": min(way.seconds[weights]),
        "most_seconds": max(way.seconds[weights]),
        "passes_waited_for_per_episode": way.waited[weights] / played,
        "whole_turns": way.whole[weights] / way.turns[weights],
        "times_turn_by_turn": seconds["turn by turn"] / seconds[way.name],
        "episodes_reproduced": same,
    }


def cells(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        one["batch"], f"{one['turns']:.1f}", one["weights"], one["way"],
        f"{one['passes_waited_for_per_episode']:.1f}", f"{one['whole_turns']:.0%}",
        f"{one['seconds']:.2f} ({one['least_seconds']:.2f} to {one['most_seconds']:.2f})",
        f"{one['times_turn_by_turn']:.2f}",
    )  # fmt: skip


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--engine", choices=[EngineName.LOCAL, EngineName.VLLM, EngineName.SGLANG], default="local")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="episodes at once")
    parser.add_argument("--turns", type=int, nargs="+", default=[4, 8], help="of an episode")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.05, help="of a tool call, seconds")
    parser.add_argument("--layers", type=int, default=9, help="of the widened policy")
    parser.add_argument("--width", type=int, default=4096, help="of its feed-forward parts")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="of the step of GRPO")
    args = parser.parse_args()
    about = provenance(["torch", *([args.engine] if args.engine != "local" else [])])
    with tempfile.TemporaryDirectory() as folder:
        folders = snapshots(
            Path(folder), epochs=2, tasks=24, samples=4, layers=args.layers, width=args.width,
            learning_rate=args.learning_rate,
        )  # fmt: skip
        choice = EngineChoice(
            name=EngineName(args.engine), model=str(folders[0]), max_batch=64, max_context=256, speculate=False
        )
        rows = asyncio.run(opened(args, choice, folders))
    columns = ("batch", "turns", "weights", "way", "passes waited for", "whole", "wall s", "turn by turn by it")
    show(titled(about), columns, map(cells, rows), words=("weights", "way"))
    keep(args.json, {**about, "rows": rows})
    return 0


async def opened(args: argparse.Namespace, choice: EngineChoice, folders: Sequence[Path]) -> list[dict[str, Any]]:
    renderer = Renderer(AutoTokenizer.from_pretrained(folders[0]))
    async with open_engine(choice) as engine:
        rows = []
        for batch, turns in product(args.batches, args.turns):
            setting = Setting(renderer, batch=batch, turns=turns, episodes=args.episodes, delay=args.delay)
            # Each play has an event loop of its own, as engines are used from outside.
            rows += await asyncio.to_thread(measure, engine, folders, setting, args.rounds)
        return rows


if __name__ == "__main__":
    raise SystemExit(main())
