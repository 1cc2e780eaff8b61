"""The ways to use earlier rollouts, each with an engine, a store of drafts and a ledger of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from trained.training import Player

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.monitors import Monitors
from turntree.agents.engines.protocol import Completion, TurnRequest
from turntree.agents.episodes.episode import Episode
from turntree.agents.guesses.config import ReuseConfig, ReuseMode
from turntree.agents.guesses.prefix_reuse import PrefixReuse

WAYS: dict[str, tuple[bool, ReuseMode]] = {
    "none": (False, ReuseMode.NONE),
    "tree": (True, ReuseMode.NONE),
    "replay": (False, ReuseMode.REPLAY),
    "exact": (False, ReuseMode.EXACT),
    "lenient": (False, ReuseMode.LENIENT),
    "tree+replay": (True, ReuseMode.REPLAY),
    "tree+exact": (True, ReuseMode.EXACT),
    "tree+lenient": (True, ReuseMode.LENIENT),
}
"""Whether the store drafts, and what is done with earlier turns."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step cost, and what came out."""

    tokens: int
    """Tokens of the policy in the episodes, reused ones included."""
    reused: int
    """Those that stayed from a stored turn."""
    passes: int
    """Runs of the model."""
    request_passes: int
    """Sum over turns of the runs that they took part in."""
    engine_seconds: float
    """Time in the engine's steps."""
    wall_seconds: float
    """Time until all episodes were over."""
    reward: float
    """Mean reward."""
    levels: dict[str, int]
    """Tokens of each level."""
    z: dict[str, float]
    """The monitors."""


class Way:
    """One way, over a policy that it may share with others.

    Args:
        name: In ``WAYS``.
        policy: The model.
        config: Of the engine; ``speculation`` is set here.
        bias: Lenience of the ways that have any.
        top_k: Tokens recorded at each position.
    """

    def __init__(self, name: str, policy: Policy, config: LocalEngineConfig, *, bias: float, top_k: int) -> None:
        drafts, mode = WAYS[name]
        fields = {field: getattr(config, field) for field in LocalEngineConfig.__dataclass_fields__}
        speculation = Speculation() if drafts else None
        self.name = name
        self.engine = LocalEngine(policy, config=LocalEngineConfig(**{**fields, "speculation": speculation}))
        self.monitors = Monitors()
        self.reuse = PrefixReuse(
            self.engine,
            ReuseConfig(mode=mode, bias=bias if mode is ReuseMode.LENIENT else None, top_k=top_k),
            vocabulary=self.engine.vocabulary,
            max_context=config.max_context,
            remember=self.engine.forest.insert if self.engine.forest is not None else None,
            seed=0,
        )

    async def generate(self, request: TurnRequest) -> Completion:
        """A turn, counted by the monitors."""
        counts = self.monitors.first_use(request.sampling.seed)
        completion = await self.reuse.generate(request)
        self.monitors.add([completion] if counts else [])
        return completion

    def play(self, player: Player, step: int, seed: int) -> tuple[list[Episode], Cost]:
        """Play a step; keys and values of the step before are gone, as after an update."""
        before, reused = self.engine.stats(), self.reuse.stats.reused
        start = time.perf_counter()
        episodes = player.play(self, step, seed)
        wall = time.perf_counter() - start
        spent = self.engine.stats() - before
        turns = [turn.completion for episode in episodes for turn in episode.turns]
        levels = "".join(turn.levels or "A" * len(turn.token_ids) for turn in turns)
        return episodes, Cost(
            tokens=len(levels),
            reused=self.reuse.stats.reused - reused,
            passes=spent.forward_passes,
            request_passes=sum(turn.draft.verify_steps for turn in turns),
            engine_seconds=spent.seconds,
            wall_seconds=wall,
            reward=sum(episode.reward for episode in episodes) / len(episodes),
            levels={letter: levels.count(letter) for letter in "ABCD"},
            z=self.monitors.close_step(),
        )

    def update(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """The policy was trained: new weights, and the turns until now may be used."""
        self.engine.update_weights(named)
        self.reuse.close_step()

    def close(self) -> None:
        self.engine.close()


def total(costs: Sequence[Cost]) -> dict[str, Any]:
    """Several steps as one row."""
    rows = [asdict(cost) for cost in costs]
    summed = ("tokens", "reused", "passes", "request_passes", "engine_seconds", "wall_seconds")
    row: dict[str, Any] = {name: sum(r[name] for r in rows) for name in summed}
    row["tokens_per_pass"] = row["tokens"] / row["passes"]
    row["tokens_per_request_pass"] = row["tokens"] / row["request_passes"]
    row["reused_share"] = row["reused"] / row["tokens"]
    row["reward"] = sum(r["reward"] for r in rows) / len(rows)
    row["levels"] = {letter: sum(r["levels"][letter] for r in rows) for letter in "ABCD"}
    row["z"] = [r["z"] for r in rows]
    return row
