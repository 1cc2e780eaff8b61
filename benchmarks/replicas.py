"""Simulate several engine replicas: the benefit and the cost of routing and of the broker.

Every replica has its own store. A step plays all tasks, several samples each. Turns are generated, and a task keeps a
few answers (``traces.generated``), so earlier answers predict later ones. Routing, the broker's log and the stores are
the real ones; a replay of turns replaces the engines, and plain calls replace Ray. Times are processor time: compare
them within one run only. Rows that ``--out`` already has are not measured again.

    python benchmarks/replicas.py                        # 1, 2, 8 and 64 replicas
    python benchmarks/replicas.py --replicas 2 --tasks 4 # a quick look

``known`` is the share of a task's earlier turns (as many as a store keeps per state) that the replica playing the task
has; 1 means no staleness. The order of tasks changes with each step. ``lost`` kills one replica and its store for one
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
    name: str
    by_task: bool = True  #: routing by task with bounded loads; else random, like a router that sees the load alone
    slack: float = 1.25  #: as in ``TaskRoutes``
    replicas_per_task: int | None = None  #: as in ``SharingSettings``; ``None`` for no broker
    lost: bool = False  #: whether a replica is lost for a step


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
    """Figures of one way, over all steps but the first."""

    way: str
    replicas: int
    tokens_per_forward_pass: float = 0.0
    known: float = 0.0  #: share of the earlier turns that were available
    load: float = 0.0  #: dialogues of the fullest replica divided by the mean
    given_mb: float = 0.0  #: sent to the broker per step, all replicas, MB
    fetched_mb: float = 0.0  #: fetched from the broker per step, all replicas, MB
    broker_mb: float = 0.0  #: the broker's log at the end, MB
    store_mb: float = 0.0  #: the fullest replica's store at the end, MB
    broker_ms: float = 0.0  #: time of the broker per step, all replicas, ms
    missed: int = 0  #: turns that arrived too late


class _Broker(TurnBroker):
    # Counts its processor time and traffic from ``restart`` on.

    seconds = 0.0
    before = (0, 0)

    def swap(self, *given: Any) -> News:
        start = time.process_time()
        news = super().swap(*given)
        self.seconds += time.process_time() - start
        return news

    def restart(self) -> None:
        self.seconds, self.before = 0.0, self._traffic()

    def traffic(self) -> tuple[int, int]:
        # Bytes received and bytes sent since ``restart``.
        came, went = self._traffic()
        return came - self.before[0], went - self.before[1]

    def _traffic(self) -> tuple[int, int]:
        stats = self.stats()
        return stats.received, stats.sent


class _Wire:
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
