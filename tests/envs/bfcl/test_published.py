"""BFCL with the benchmark's own package: its paths win as its checker has it, and nothing that a policy calls hangs."""

import inspect
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from bfcl_paths import changed, follow, left_out, path_of
from catalogue_policies import LOSERS, WINNERS, play_as
from odd_arguments import odd_arguments
from playing import call

from turntree.envs import Limits, make
from turntree.envs.bfcl.apis import APIS, all_api_tools
from turntree.envs.bfcl.env import BFCL, SPLITS
from turntree.envs.bfcl.world import World, beginning_of
from turntree.envs.bridges.trl import trl_environment
from turntree.envs.message import Role

pytestmark = pytest.mark.interop
ALL_TURNS = Limits(max_turns=256)
each_split = pytest.mark.parametrize("split", SPLITS)


@pytest.fixture(autouse=True)
def no_apis_of_other_tests() -> Iterator[None]:
    """The package keeps its APIs in globals, by names of models and tasks."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    before = set(vars(multi_turn_utils))
    yield
    for name in set(vars(multi_turn_utils)) - before:
        delattr(multi_turn_utils, name)


@each_split
def test_every_path_wins_its_task_and_words_win_none(split: str) -> None:
    env = make("turntree/BFCL-v0", split=split, limits=ALL_TURNS)
    assert env.num_tasks == 200
    for index in range(200):
        assert play_as(env, WINNERS["turntree/BFCL-v0"], index).won, index
        assert play_as(env, LOSERS["sorry"], index).lost, index


def as_python(path: list[list[dict[str, Any]]]) -> list[list[str]]:
    """The calls of a path as the benchmark takes them."""
    return [
        [f"{one['name']}({', '.join(f'{key}={value!r}' for key, value in one['arguments'].items())})" for one in calls]
        for calls in path
    ]


@pytest.fixture
def checker() -> Any:
    """The benchmark's own verdict on a path, as that of a model whose name comes once."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker

    names = itertools.count()

    def verdict(env: BFCL, index: int, path: list[list[dict[str, Any]]]) -> Any:
        task = env.task(index)
        entry = {"initial_config": task.metadata["world"], "involved_classes": task.metadata["apis"], "id": task.id}
        said = [[calls] if calls else [] for calls in as_python(path)]
        own = as_python(path_of(env, index))
        return multi_turn_checker.multi_turn_checker(said, own, entry, task.id, f"model{next(names)}")

    return verdict


@each_split
def test_the_benchmarks_own_checker_has_the_same_verdict(split: str, checker: Any) -> None:
    """On each path, and on each with one call less or one argument changed, nearly all of which lose."""
    env = BFCL(split=split, limits=ALL_TURNS)
    verdicts = []
    for index in range(200):
        path = path_of(env, index)
        for other in (path, *left_out(path), *changed(path)):
            ours, theirs = follow(env, index, other), checker(env, index, other)
            judged_by_us_alone = not path[-1] and ours.lost  # the state after a last turn without calls
            assert ours.won == theirs["valid"] or judged_by_us_alone, (index, other, theirs)
            verdicts.append(ours.won)
    assert verdicts.count(True) >= 200
    assert verdicts.count(False) > 0.85 * len(verdicts)


@each_split
def test_every_result_is_the_benchmarks_own_letter_for_letter(split: str) -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    env, calls = BFCL(split=split, limits=ALL_TURNS), 0
    for index in range(200):
        assert follow(env, index, path_of(env, index)).won
        facts = env.current_task.metadata
        asked = [one for turn in as_python(facts["path"]) for one in turn]
        theirs, _ = execute_multi_turn_func_call(
            asked, facts["world"], facts["apis"], split, env.current_task.id, facts["long_context"]
        )
        assert [message.content for message in env.messages if message.role is Role.TOOL] == theirs
        calls += len(asked)
    assert calls == {"base": 1142, "miss_func": 1140, "miss_param": 1140, "long_context": 1203}[split]


@each_split
def test_an_episode_goes_on_from_a_snapshot_of_every_turn(split: str) -> None:
    env, other = (BFCL(split=split, limits=ALL_TURNS) for _ in range(2))
    for index in range(0, 200, 5):
        env.reset(options={"index": index})
        for turn in env.solution():
            other.restore(env.snapshot())
            told = env.step(turn)
            assert other.step(turn) == told
        assert told[1:3] == (1.0, True)


@pytest.mark.parametrize("split", ["base", "long_context"])
def test_no_arguments_lead_to_a_failure_and_none_to_what_is_no_json(split: str) -> None:
    """An exception would be a failure of the infrastructure, which a policy could bring about."""
    env, tools = BFCL(split=split, limits=ALL_TURNS), all_api_tools()
    indices = {api: next(n for n in range(200) if api in env.task(n).metadata["apis"]) for api in APIS}
    assert len(tools) == 128
    raised = 0
    for tool in tools.values():
        env.reset(options={"index": indices[tool.api]})
        for arguments in odd_arguments(tool):
            said, *_, info = env.step(call(env, tool.name, **arguments))
            assert not info["stop_reason"], (tool.name, arguments, info["failure"])
            with suppress(json.JSONDecodeError):  # some are Python's words
                json.loads(said, parse_constant=pytest.fail)
            raised += said.startswith("Error during execution: ")
        env.snapshot()
    assert raised > 40


def test_the_weather_of_one_episode_is_not_that_of_another() -> None:
    """The package keeps it in a global, which is the result."""
    env, tool = BFCL(split="long_context"), all_api_tools()["get_outside_temperature_from_google"]
    beginning = beginning_of(next(env.task(n) for n in range(200) if tool.api in env.task(n).metadata["apis"]))

    def weather(number: int) -> str:
        world = World()
        world.begin(beginning)
        return [tool.run({}, owner=world) for _ in range(number % 9 + 1)][-1]

    one_by_one = [weather(number) for number in range(300)]
    assert len(set(one_by_one)) == 9
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(weather, range(300))) == one_by_one


def test_each_tool_is_a_documented_method_of_trls_environment() -> None:
    from transformers.utils import get_json_schema

    env = trl_environment(BFCL)()
    for tool in all_api_tools().values():
        shown = get_json_schema(getattr(env, tool.name))["function"]["parameters"]["properties"]
        assert list(shown) == list(inspect.signature(tool.function).parameters)[1:]
        assert all(argument["description"] for argument in shown.values())
