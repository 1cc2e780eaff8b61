import pytest

from turntree.agents.engines.routing import preference, route_key
from turntree.agents.verl.config.settings import ExchangeSettings
from turntree.agents.verl.serving.hub import TurnHub
from turntree.spec_tree import DialogueState
from turntree.spec_tree.exchange.turn_batch import TurnBatch
from turntree.spec_tree.exchange.turn_log import Cursor, News

NOTHING = TurnBatch.of([], [])


def batch(*tasks: int) -> TurnBatch:
    states = [DialogueState.from_tokens([task], task=str(task), env="sums") for task in tasks]
    return TurnBatch.of(states, [[task] * 3 for task in tasks])


def said(news: News) -> list[int]:
    return [int(turn[0]) for one in news.batches for turn in one.turns]


class Member:
    def __init__(self, hub: TurnHub, rank: int) -> None:
        self.hub, self.rank = hub, rank
        self.cursor: Cursor | None = None
        self.sent = self.fetched = 0

    def swap(self, own: TurnBatch = NOTHING) -> list[int]:
        news = self.hub.swap(self.rank, f"{self.rank}/life", own, self.sent, self.cursor)
        self.cursor, self.sent = news.cursor, self.sent + len(own)
        self.fetched += len(said(news))
        return said(news)


def members_of(homes: int, count: int) -> tuple[TurnHub, list[Member]]:
    hub = TurnHub(ExchangeSettings(homes=homes))
    members = [Member(hub, rank) for rank in range(count)]
    for member in members:
        member.swap()
    return hub, members


def routed_to(rank: int, tasks: range, *, homes: int, among: int) -> list[int]:
    states = {task: DialogueState(exact=1, task=str(task), env="sums") for task in tasks}
    return [task for task in tasks if rank in preference(route_key(states[task]), range(among))[:homes]]


def test_a_replica_fetches_the_turns_of_tasks_that_may_be_routed_to_it() -> None:
    _, members = members_of(homes=2, count=5)
    tasks = range(100)
    members[0].swap(batch(*tasks))
    for member in members[1:]:
        mine = routed_to(member.rank, tasks, homes=2, among=5)
        assert member.swap() == mine
        assert 20 < len(mine) < 60


def test_a_replica_that_joins_becomes_a_home_of_tasks_that_the_hub_knew() -> None:
    hub, (first, second) = members_of(homes=1, count=2)
    tasks = range(60)
    first.swap(batch(*tasks))
    second.swap()
    third = Member(hub, 2)
    third.swap()
    first.swap(batch(*tasks))
    mine = routed_to(2, tasks, homes=1, among=3)
    assert third.swap() == mine
    assert mine


def test_all_turns_are_fetched_where_that_is_wanted() -> None:
    _, members = members_of(homes=0, count=5)
    members[0].swap(batch(*range(20)))
    assert [len(member.swap()) for member in members] == [0, 20, 20, 20, 20]


def test_traffic_does_not_grow_with_the_number_of_replicas() -> None:
    def fetched(replicas: int) -> int:
        _, members = members_of(homes=2, count=replicas)
        for member in members:
            member.swap(batch(*range(member.rank, 256, replicas)))
        for member in members:
            member.swap()
        return sum(member.fetched for member in members)

    assert fetched(4) < fetched(32) <= 2 * 256


def test_the_hub_counts_what_it_holds_and_moves() -> None:
    hub = TurnHub(ExchangeSettings(homes=0, max_bytes=2 * batch(0, 1).nbytes))
    one, other = Member(hub, 0), Member(hub, 1)
    for _ in range(3):
        one.swap(batch(0, 1))
    other.swap()
    stats = hub.stats()
    assert (stats.turns, stats.dropped, stats.members) == (4, 2, 2)
    assert stats.received == 3 * batch(0, 1).nbytes + NOTHING.nbytes
    assert stats.sent == 2 * batch(0, 1).nbytes


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ExchangeSettings(max_bytes=0)
    with pytest.raises(ValueError, match="homes must not be negative"):
        ExchangeSettings(homes=-1)
