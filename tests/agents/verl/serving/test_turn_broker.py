import pytest

from turntree.agents.engines.routing import preference, route_key
from turntree.agents.verl.config.settings import SharingSettings
from turntree.agents.verl.serving.turn_broker import TurnBroker
from turntree.spec_tree import DialogueState
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_log import Cursor, News

NOTHING = TurnBatch.of([], [])


def batch(*tasks: int) -> TurnBatch:
    states = [DialogueState.from_tokens([task], task=str(task), env="sums") for task in tasks]
    return TurnBatch.of(states, [[task] * 3 for task in tasks])


def said(news: News) -> list[int]:
    return [int(turn[0]) for one in news.batches for turn in one.turns]


class Member:
    def __init__(self, broker: TurnBroker, rank: int) -> None:
        self.broker, self.rank = broker, rank
        self.cursor: Cursor | None = None
        self.sent = self.fetched = 0

    def swap(self, own: TurnBatch = NOTHING) -> list[int]:
        news = self.broker.swap(self.rank, f"{self.rank}/life", own, self.sent, self.cursor)
        self.cursor, self.sent = news.cursor, self.sent + len(own)
        self.fetched += len(said(news))
        return said(news)


def members_of(replicas_per_task: int, count: int) -> tuple[TurnBroker, list[Member]]:
    broker = TurnBroker(SharingSettings(replicas_per_task=replicas_per_task))
    members = [Member(broker, rank) for rank in range(count)]
    for member in members:
        member.swap()
    return broker, members


def routed_to(rank: int, tasks: range, *, replicas_per_task: int, among: int) -> list[int]:
    states = {task: DialogueState(exact=1, task=str(task), env="sums") for task in tasks}
    return [task for task in tasks if rank in preference(route_key(states[task]), range(among))[:replicas_per_task]]


def test_a_replica_fetches_the_turns_of_tasks_that_may_be_routed_to_it() -> None:
    _, members = members_of(replicas_per_task=2, count=5)
    tasks = range(100)
    members[0].swap(batch(*tasks))
    for member in members[1:]:
        mine = routed_to(member.rank, tasks, replicas_per_task=2, among=5)
        assert member.swap() == mine
        assert 20 < len(mine) < 60


def test_a_replica_that_joins_becomes_a_home_of_tasks_that_the_broker_knew() -> None:
    broker, (first, second) = members_of(replicas_per_task=1, count=2)
    tasks = range(60)
    first.swap(batch(*tasks))
    second.swap()
    third = Member(broker, 2)
    third.swap()
    first.swap(batch(*tasks))
    mine = routed_to(2, tasks, replicas_per_task=1, among=3)
    assert third.swap() == mine
    assert mine


def test_all_turns_are_fetched_where_that_is_wanted() -> None:
    _, members = members_of(replicas_per_task=0, count=5)
    members[0].swap(batch(*range(20)))
    assert [len(member.swap()) for member in members] == [0, 20, 20, 20, 20]


def test_traffic_does_not_grow_with_the_number_of_replicas() -> None:
    def fetched(replicas: int) -> int:
        _, members = members_of(replicas_per_task=2, count=replicas)
        for member in members:
            member.swap(batch(*range(member.rank, 256, replicas)))
        for member in members:
            member.swap()
        return sum(member.fetched for member in members)

    assert fetched(4) < fetched(32) <= 2 * 256


def test_the_broker_counts_what_it_holds_and_moves() -> None:
    broker = TurnBroker(SharingSettings(replicas_per_task=0, max_bytes=2 * batch(0, 1).nbytes))
    one, other = Member(broker, 0), Member(broker, 1)
    for _ in range(3):
        one.swap(batch(0, 1))
    other.swap()
    stats = broker.stats()
    assert (stats.turns, stats.dropped, stats.members) == (4, 2, 2)
    assert stats.received == 3 * batch(0, 1).nbytes + NOTHING.nbytes
    assert stats.sent == 2 * batch(0, 1).nbytes


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        SharingSettings(max_bytes=0)
    with pytest.raises(ValueError, match="replicas_per_task must not be negative"):
        SharingSettings(replicas_per_task=-1)
