from importlib import resources
from typing import Any

import pytest

from turntree.agents.engines.state_wire import KEY, to_wire
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.serving.router import TaskRouter
from turntree.spec_tree import DialogueState

SERVERS: dict[str, Any] = {"a": "handle a", "b": "handle b", "c": "handle c"}


def router(**settings: Any) -> TaskRouter:
    return TaskRouter(SERVERS, {"router_class": "x", "look_seconds": 0, **settings})


def state(task: int, turn: int = 0) -> DialogueState:
    return DialogueState.from_tokens([task, turn], task=str(task), env="sums")


def test_the_samples_of_a_task_and_their_turns_go_to_one_server_whatever_engine_it_is() -> None:
    one = router()
    for task in range(20):
        ways: list[dict[str, Any]] = [
            {"state": state(task)},
            {"sampling_params": {"extra_args": {KEY: to_wire(state(task))}}},
            {"sampling_params": {"custom_params": {KEY: to_wire(state(task))}}},
        ]
        places = {one.acquire_server(f"{task}/{sample}", **way) for sample, way in enumerate(ways)}
        places |= {one.acquire_server(f"{task}/{sample}", state=state(task, 1)) for sample in range(3)}
        ((name, handle),) = places
        assert handle == SERVERS[name]
        for sample in (0, 1, 2) * 2:
            one.release_server(name, f"{task}/{sample}")
    assert one.get_total_inflight() == 0


def test_a_dialogue_without_a_state_stays_where_it_began_and_others_are_spread() -> None:
    one = router()
    first = {f"r{number}": one.acquire_server(f"r{number}")[0] for number in range(60)}
    assert {name: one.acquire_server(name)[0] for name in first} == first
    assert min(one.get_status()["servers"].values()) > 20


def test_load_is_counted_by_turn_and_bounded_and_so_is_what_is_remembered() -> None:
    one = router(slack=1.0)
    for task in range(30):
        one.acquire_server(f"{task}", state=state(task))
    assert set(one.get_status()["servers"].values()) == {10}
    one.release_server("a", "unknown")
    assert one.get_total_inflight() == 29
    one = router(remembered=10)
    for number in range(50):
        one.acquire_server(f"r{number}")
    assert one.clear_sticky_cache()["cleared_entries"] == 10


def test_servers_may_leave_and_join() -> None:
    one = router()
    before = one.acquire_server("r", state=state(1))[0]
    one.remove_servers([before])
    after = one.acquire_server("r", state=state(1))[0]
    assert after != before
    assert before not in one.get_all_servers()
    one.add_servers({before: SERVERS[before]})
    assert sorted(one.get_all_servers()) == ["a", "b", "c"]
    assert one.acquire_server("r", state=state(1))[0] == after  # a dialogue does not move without need
    one.remove_servers(list(SERVERS))
    with pytest.raises(RuntimeError, match="No available servers"):
        one.acquire_server("r")


def test_forgetting_dialogues_sends_them_home_and_keeps_the_count_of_turns() -> None:
    one = router()
    home = one.acquire_server("r", state=state(1))[0]
    one.remove_servers([home])
    assert one.acquire_server("r", state=state(1))[0] != home
    one.add_servers({home: SERVERS[home]})
    assert one.clear_sticky_cache()["cleared_entries"] == 1
    assert one.get_total_inflight() == 1
    assert one.acquire_server("r", state=state(1))[0] == home


def test_verl_makes_the_router_of_the_file_that_ships() -> None:
    from verl.workers.rollout import router as verls

    path = resources.files("turntree.configs").joinpath("routers", "task.yaml")
    config = verls._load_router_yaml(str(path))
    kind = verls._resolve_router_class(config["router_class"])
    assert kind is TaskRouter
    made = kind(SERVERS, config)
    needed = [name for name in vars(verls.RequestLoadBalancer) if not name.startswith("_")]
    assert all(callable(getattr(made, name)) for name in needed)
    assert len(needed) == 10
    with pytest.raises(ConfigError, match="did you mean 'slack'"):
        TaskRouter(SERVERS, {"slak": 2})
