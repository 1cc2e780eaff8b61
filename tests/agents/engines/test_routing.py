from collections import Counter

import pytest

from turntree.agents.engines.routing import NoReplicas, TaskRoutes, preference, route_key
from turntree.spec_tree import DialogueState

KEYS = [f"sums/{number}" for number in range(2000)]


def test_the_turns_of_a_dialogue_and_the_samples_of_a_task_have_one_key() -> None:
    first = DialogueState.from_tokens([1, 2], task="7", env="sums")
    later = DialogueState.from_tokens([1, 2, 3, 4], task="7", tools="add(1,2)", env="sums")
    other = DialogueState.from_tokens([1, 2], task="8", env="sums")
    assert route_key(first) == route_key(later) != route_key(other)
    # States without a task are told apart by their tokens.
    assert route_key(DialogueState.from_tokens([1])) != route_key(DialogueState.from_tokens([2]))


def test_owner_replicas_are_spread_evenly_and_depend_on_neither_the_process_nor_the_order_of_the_replicas() -> None:
    owners = Counter(preference(key, range(8))[0] for key in KEYS)
    assert min(owners.values()) > 0.75 * len(KEYS) / 8
    assert preference("sums/1", ["a", "b", "c"]) == preference("sums/1", ["c", "a", "b"]) == ["a", "c", "b"]


def test_only_the_tasks_of_a_failed_replica_move() -> None:
    routes = TaskRoutes(range(8))
    before = {key: preference(key, range(8))[0] for key in KEYS}
    routes.lose(3)
    after = {key: preference(key, routes.alive)[0] for key in KEYS}
    assert {before[key] for key in KEYS if before[key] != after[key]} == {3}
    assert 3 not in after.values()


def test_no_replica_gets_more_than_its_share_and_the_slack() -> None:
    routes = TaskRoutes(range(16), slack=1.25)
    assigned = {key: routes.acquire(key) for key in KEYS}
    assert max(routes.loads().values()) <= 1.25 * len(KEYS) / 16 + 1
    plain = Counter(preference(key, range(16))[0] for key in KEYS)
    assert sum(assigned[key] == preference(key, range(16))[0] for key in KEYS) > 0.8 * len(KEYS)
    assert max(plain.values()) > max(routes.loads().values()) * 0.9


def test_the_siblings_of_a_live_task_follow_it_even_to_a_full_replica() -> None:
    routes = TaskRoutes(["a", "b"], slack=1.0)
    (replica,) = {routes.acquire("sums/1") for _ in range(16)}
    assert replica not in {routes.acquire(f"sums/{number}") for number in range(2, 18)}
    assert routes.acquire("sums/1") == replica


def test_a_task_that_has_ended_returns_to_its_owner_replica() -> None:
    routes = TaskRoutes(["a", "b"], slack=1.0)
    owner, away = preference("sums/1", ["a", "b"])
    crowd = [key for key in KEYS[2:] if preference(key, ["a", "b"])[0] == owner][:2]
    assert [routes.acquire(key) for key in crowd] == [owner, away]
    routes.hold("x/1", owner)
    assert routes.acquire("sums/1") == away
    routes.release("sums/1", away)
    for key, replica in (*zip(crowd, (owner, away), strict=True), ("x/1", owner)):
        routes.release(key, replica)
    assert set(routes.loads().values()) == {0}
    assert routes.acquire("sums/1") == owner


def test_a_replica_that_comes_back_starts_empty() -> None:
    routes = TaskRoutes(["a", "b"])
    replica = routes.acquire("sums/1")
    routes.lose(replica)
    assert replica in routes.lost
    routes.restore(replica)
    routes.release("sums/1", replica)  # what was placed before it was lost
    assert routes.loads() == {"a": 0, "b": 0}
    assert routes.alive == ["a", "b"]


def test_no_replica_at_all_is_an_error() -> None:
    routes = TaskRoutes(["a"])
    routes.lose("a")
    with pytest.raises(NoReplicas, match="all 1 engine replicas have failed"):
        routes.acquire("sums/1")
    with pytest.raises(ValueError, match="at least one replica"):
        TaskRoutes([])
    with pytest.raises(ValueError, match="at least 1"):
        TaskRoutes(["a"], slack=0.5)


def test_a_dialogue_may_stay_where_it_is_unless_that_replica_is_lost() -> None:
    routes = TaskRoutes(["a", "b"])
    away = preference("sums/1", ["a", "b"])[1]
    assert routes.hold("sums/1", away)
    assert routes.acquire("sums/1") == away
    assert routes.loads()[away] == 2
    routes.lose(away)
    assert not routes.hold("sums/1", away)
    assert not routes.hold("sums/1", "c")
