"""Several engine replicas, simulated: what routing and the broker are worth, and what they cost.

Every replica has a store of its own. A step plays all tasks, some samples each; the turns are generated ones whose
tasks keep a few ways to speak (``traces.generated``), so what a task was answered before predicts what comes. The
routing, the broker's log and the stores are the real ones; engines are replaced by a replay of the turns, and Ray by
calls. Times are processor time: trust ratios within one run. Rows that ``--out`` has are not measured again.

    python benchmarks/replicas.py                        # 1, 2, 8 and 64 replicas
    python benchmarks/replicas.py --replicas 2 --tasks 4 # a quick look

``known`` is the share of a task's earlier turns (as many as a store keeps of one state) that the replica which plays
it has: 1 is no staleness. Tasks come in another order each step. ``lost`` kills one replica, with its store, for one
step.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common.provenance import kept_from, provenance
from common.script import arguments, keep
from drafting.drafters import Setup, Turntree
from drafting.replay import Replay, replay
from drafting.traces import Turn, generated

from turntree.agents.engines.routing import TaskRoutes, route_key
from turntree.agents.verl.config.settings import SharingSettings
from turntree.agents.verl.serving.turn_broker import TurnBroker
from turntree.spec_tree import ForestConfig
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_log import Cursor, News
from turntree.spec_tree.sharing.turn_sharing import SharedTurns, Swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How turns are routed and shared."""

    name: str
    """In the table."""
    by_task: bool = True
    """Routing by task with bounded loads; else at random, as with a router that looks at the load alone."""
    slack: float = 1.25
    """As ``TaskRoutes`` has it."""
    replicas_per_task: int | None = None
    """``SharingSettings.replicas_per_task``; ``None`` is no broker."""
    lost: bool = False
    """Whether a replica is lost for a step."""


WAYS = (
    Way(name="owner replica, no sharing", slack=1e9),
    Way(name="by task, no sharing"),
    Way(name="by task, sharing with 1 replica", replicas_per_task=1),
    Way(name="by task, sharing with 2 replicas", replicas_per_task=2),
    Way(name="by task, sharing with all", replicas_per_task=0),
    Way(name="random, no sharing", by_task=False),
    Way(name="random, sharing with all", by_task=False, replicas_per_task=0),
    Way(name="one down: by task, no sharing", lost=True),
    Way(name="one down: by task, sharing with 2 replicas", replicas_per_task=2, lost=True),
)


@dataclass(slots=True, kw_only=True)
class Row:
    """What one way measured, over all steps but the first."""

    way: str
    replicas: int
    tokens_per_forward_pass: float = 0.0
    """Tokens per forward pass."""
    known: float = 0.0
    """Share of the earlier turns that were there."""
    load: float = 0.0
    """Dialogues of the fullest replica over the mean."""
    given_mb: float = 0.0
    """To the broker, per step, all replicas, MB."""
    fetched_mb: float = 0.0
    """From the broker, per step, all replicas, MB."""
    broker_mb: float = 0.0
    """The broker's log at the end, MB."""
    store_mb: float = 0.0
    """The fullest replica's store at the end, MB."""
    broker_ms: float = 0.0
    """Time of the broker per step, all replicas, ms."""
    missed: int = 0
    """Turns that came too late to be had."""


class _Broker(TurnBroker):
    """A broker that counts its processor time, and what goes through it, from ``restart`` on."""

    seconds = 0.0
    before = (0, 0)

    def swap(self, *given: Any) -> News:
        start = time.process_time()
        news = super().swap(*given)
        self.seconds += time.process_time() - start
        return news

    def restart(self) -> None:
        """Count from now on."""
        self.seconds, self.before = 0.0, self._traffic()

    def traffic(self) -> tuple[int, int]:
        """Bytes that came and that went since ``restart``."""
        came, went = self._traffic()
        return came - self.before[0], went - self.before[1]

    def _traffic(self) -> tuple[int, int]:
        stats = self.stats()
        return stats.received, stats.sent


class _Wire:
    """An sharing with a broker of this process."""

    def __init__(self, broker: TurnBroker, rank: int, life: int) -> None:
        self.broker, self.rank, self.source = broker, rank, f"{rank}/{life}"
        self.cursor: Cursor | None = None

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        news = self.broker.swap(self.rank, self.source, own, first, self.cursor)
        self.cursor = news.cursor
        return Swapped(news.batches, news.missed)


@dataclass(slots=True)
class _Replica:
    rank: int
    broker: TurnBroker | None
    life: int = 0
    drafter: Turntree = field(init=False)
    shared: SharedTurns | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.drafter = Turntree(Setup(end_tokens=frozenset({31}), forest={"max_tokens": 1 << 20}))
        if self.broker is not None:
            self.shared = SharedTurns(self.drafter.forest, _Wire(self.broker, self.rank, self.life))

    def play(self, turns: Sequence[Turn], batch: int) -> Replay:
        counts = replay(self.drafter, turns, batch=batch)
        if self.shared is not None:
            for turn in turns:
                self.shared.note(turn.state, turn.tokens.tolist())
        return counts


def simulate(way: Way, *, replicas: int, tasks: int, samples: int, steps: int, seed: int) -> Row:
    """Play all steps with ``tasks`` tasks a replica."""
    trace = generated(steps=steps, states=tasks * replicas, samples=samples, seed=seed)
    size = tasks * replicas * samples
    quota = ForestConfig().rollouts_per_state
    rng = random.Random(seed)
    broker = (
        None if way.replicas_per_task is None else _Broker(SharingSettings(replicas_per_task=way.replicas_per_task))
    )
    members = [_Replica(rank, broker) for rank in range(replicas)]
    routes: TaskRoutes[int] = TaskRoutes(list(range(replicas)), slack=way.slack)
    row = Row(way=way.name, replicas=replicas)
    said: Counter[int] = Counter()
    verified = emitted = had = could = 0
    loads: list[float] = []
    for member in members:  # the broker learns who there is before there is anything to tell
        if member.shared is not None:
            member.shared.swap()
    for step in range(steps):
        if step == 1 and broker is not None:
            broker.restart()
        gone = 0 if way.lost and replicas > 1 and step == 2 else None
        if gone is not None:
            routes.lose(gone)
            members[gone] = _Replica(gone, broker, members[gone].life + 1)
        shares: dict[int, list[Turn]] = {rank: [] for rank in routes.alive}
        placed: list[tuple[str, int]] = []
        order = rng.sample(range(tasks * replicas), tasks * replicas)
        mates = trace.turns[step * size : (step + 1) * size]
        for turn in sorted(mates, key=lambda turn: order[turn.start]):
            key = route_key(turn.state)
            rank = routes.acquire(key) if way.by_task else rng.choice(routes.alive)
            placed += [(key, rank)] if way.by_task else []
            shares[rank].append(turn)
        for rank, turns in shares.items():
            forest = members[rank].drafter.forest
            if step:
                had += sum(forest.finished([turn.state for turn in turns]))
                could += sum(min(quota, said[turn.start]) for turn in turns)
            counts = members[rank].play(turns, tasks * samples)
            if step:
                verified, emitted = verified + counts.steps, emitted + counts.emitted
        if step:
            loads.append(max(map(len, shares.values())) * len(shares) / size)
        said.update(turn.start for turn in mates)
        for key, rank in placed:
            routes.release(key, rank)
        for member in [*rng.sample(members, len(members)), *rng.sample(members, len(members))]:  # all give, all take
            if member.shared is not None and member.rank != gone:
                member.shared.swap()
        if gone is not None:
            routes.restore(gone)
    row.tokens_per_forward_pass = emitted / max(1, verified)
    row.known = had / max(1, could)
    row.load = sum(loads) / max(1, len(loads))
    row.store_mb = max(member.drafter.forest.stats().bytes for member in members) / 1e6
    row.missed = sum(member.shared.counts.missed for member in members if member.shared is not None)
    if broker is not None:
        counted = max(1, steps - 1)
        row.given_mb, row.fetched_mb = (amount / counted / 1e6 for amount in broker.traffic())
        row.broker_mb = broker.stats().nbytes / 1e6
        row.broker_ms = 1e3 * broker.seconds / counted
    return row


COLUMNS = ("tokens_per_forward_pass", "known", "load", "given_mb", "fetched_mb", "broker_mb", "store_mb", "broker_ms")


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 2, 8, 64])
    parser.add_argument("--tasks", type=int, default=8, help="tasks of a step, a replica")
    parser.add_argument("--samples", type=int, default=4, help="samples of a task and step")
    parser.add_argument("--steps", type=int, default=5, help="steps, each an epoch; the first is not counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    args = parser.parse_args(argv)
    about: dict[str, Any] = {
        "settings": {name: getattr(args, name) for name in ("tasks", "samples", "steps", "seed")},
        **provenance(("turntree", "numpy", "numba")),
    }
    print(about["machine"], about["command"], sep="\n")
    print(f"{'replicas':>8}  {'way':<28}" + "".join(f"{name:>16}" for name in COLUMNS), flush=True)
    rows = [Row(**row) for row in kept_from(args.out, about).get("rows", [])]
    had = {(row.replicas, row.way) for row in rows}
    for replicas in args.replicas:
        for way in WAYS:
            if (replicas == 1 and way != WAYS[0]) or way.name not in args.ways or (replicas, way.name) in had:
                continue
            row = simulate(
                way,
                replicas=replicas,
                tasks=args.tasks,
                samples=args.samples,
                steps=args.steps,
                seed=args.seed,
            )
            rows.append(row)
            figures = "".join(f"{getattr(row, name):>16.3f}" for name in COLUMNS)
            print(f"{replicas:>8}  {way.name:<28}{figures}", flush=True)
            keep(args.out, {**about, "rows": [asdict(one) for one in rows]})


if __name__ == "__main__":
    main()
