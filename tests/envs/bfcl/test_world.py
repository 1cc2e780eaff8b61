"""What an API of the benchmark raises, keeps, shares or would never end stays within its episode, as a result.

Each test plays a stand-in for the package, and some of them the package too.
"""

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import bfcl_stand_in
import mpmath
import pytest
from tables import table

from turntree.envs import Task, list_envs, make
from turntree.envs.bfcl import apis
from turntree.envs.bfcl.world import World, beginning_of
from turntree.envs.errors import MissingExtra

CONFIGURATION = {"root": {"home": {"contents": {"todo.txt": {"type": "file", "content": "buy shoes"}}}}}
both = pytest.mark.parametrize(
    "package", ["stand-in", pytest.param("bfcl-eval", marks=pytest.mark.interop)], indirect=True
)


@pytest.fixture(autouse=True)
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in also where the package itself is installed, unless a test asks for that."""
    cached = (apis.all_api_tools, apis.tools_of)
    if getattr(request, "param", "stand-in") == "stand-in":
        for name, module in bfcl_stand_in.modules(tmp_path).items():
            monkeypatch.setitem(sys.modules, name, module)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def task(*, long_context: bool = False) -> Task:
    facts = {"apis": ["GorillaFileSystem", "MathAPI"], "world": {"GorillaFileSystem": CONFIGURATION}}
    return Task(id="t", prompt="Go.", answer="", metadata={**facts, "long_context": long_context})


def begun(**options: Any) -> World:
    world = World()
    world.begin(beginning_of(task(**options)))
    return world


def use(world: World, called: str, /, **arguments: Any) -> str:
    return apis.all_api_tools()[called].run(arguments, owner=world)


def test_results_and_errors_are_in_the_benchmarks_words() -> None:
    world = begun()
    assert use(world, "wc", file_name="todo.txt") == '{"count": 2, "type": "words"}'
    assert use(world, "mkdir", dir_name="plans") == "None"
    assert use(world, "square_root", number=4, precision=3) == "{'result': Root('2')}"
    assert use(world, "rm", file_name="no.txt") == "Error during execution: 'no.txt'"
    assert use(world, "mean", numbers=[]) == "Error during execution: division by zero"
    unknown = use(world, "wc", path="todo.txt")
    assert unknown == "Error during execution: GorillaFileSystem.wc() got an unexpected keyword argument 'path'"


def test_what_is_no_json_neither_reaches_an_api_nor_the_policy() -> None:
    world = begun()
    refused = "Error during execution: Out of range float values are not JSON compliant"
    assert use(world, "mean", numbers=[float("nan")]).startswith(refused)
    assert use(world, "mean", numbers=[1e308, 1e308]).startswith(refused)
    assert use(world, "mean", numbers=[1e308]) == '{"result": 1e+308}'


@both
@pytest.mark.parametrize(("called", "arguments", "reason"), table(__file__, "endless_calls"))
def test_a_call_that_would_take_minutes_is_refused(called: str, arguments: dict[str, Any], reason: str) -> None:
    assert use(begun(), called, **arguments) == f"Error during execution: {called}: {reason}"


@both
def test_a_folder_in_itself_and_copies_of_copies_are_not_searched() -> None:
    vast = "Error during execution: there are more than 20000 entries or 50 levels of folders"
    world = begun()
    use(world, "mkdir", dir_name="a")
    assert use(world, "du") == '{"disk_usage": "9 bytes"}'
    use(world, "cp", source="a", destination="a")
    assert [use(world, "du"), use(world, "mkdir", dir_name="b")] == [vast] * 2
    for most in (1, 2):  # a long chain, and one that doubles
        world = begun()
        for number in range(100):
            use(world, "mkdir", dir_name=str(number))
            for source in range(max(0, number - most), number):
                use(world, "cp", source=str(source), destination=str(number))
        assert use(world, "du") == vast
        assert pickle.loads(pickle.dumps(world)).states() == world.states()


@both
def test_what_a_call_sets_for_the_whole_process_is_its_own_and_restored() -> None:
    before, world = mpmath.mp.prec, begun()
    digits = [5 + number % 20 for number in range(100)]
    logarithm = partial(use, world, "logarithm", value=2.0, base=10.0)
    one_by_one = [logarithm(precision=one) for one in digits]
    assert len(set(one_by_one)) == 20
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda one: logarithm(precision=one), digits)) == one_by_one
    assert mpmath.mp.prec == before


def test_worlds_share_nothing_with_each_other_nor_with_arguments_nor_with_the_package() -> None:
    beginning = beginning_of(task(long_context=True))
    worlds = [World(), World()]
    for world in worlds:
        world.begin(beginning)
    worlds[0].apis["GorillaFileSystem"].card["balance"] -= 1
    use(worlds[0], "rm", file_name="todo.txt")
    assert begun(long_context=True).states() == worlds[1].states() != worlds[0].states()
    assert bfcl_stand_in.SHARED_CARD == {"balance": 100}


def test_the_apis_themselves_raise_share_what_they_have_and_never_end() -> None:
    """The control of all above."""
    files = bfcl_stand_in.GorillaFileSystem()
    files._load_scenario({}, long_context=True)
    assert files.card is bfcl_stand_in.SHARED_CARD
    files.mkdir("a")
    files.cp("a", "a")
    with pytest.raises(RecursionError):
        files.du()
    with pytest.raises(ZeroDivisionError):
        bfcl_stand_in.MathAPI().mean([])
    with mpmath.workdps(15):
        bfcl_stand_in.MathAPI().logarithm(2, 10, precision=7)
        assert mpmath.mp.dps == 7


def test_arguments_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl_stand_in.MathAPI, "mean", lambda self, numbers: numbers.append(1))
    numbers = [3]
    assert use(begun(), "mean", numbers=numbers) == "None"
    assert numbers == [3]


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    assert "turntree/BFCL-v0" in list_envs()
    with pytest.raises(MissingExtra, match=r"-m pip install --no-deps bfcl-eval==2026\.3\.23$"):
        make("turntree/BFCL-v0")
