"""What an API of the benchmark raises, keeps, shares or would never end stays within its episode, as a result.

Each test plays a stand-in for the package, and some of them the package too.
"""

import decimal
import logging
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import bfcl_stand_in
import mpmath
import pytest
from bfcl_stand_in import both, package  # noqa: F401
from tables import table

from turntree.envs import Task, list_envs, make
from turntree.envs.bfcl import apis
from turntree.envs.bfcl.world import World, beginning_of
from turntree.envs.errors import MissingExtra

pytestmark = pytest.mark.usefixtures("package")
CONFIGURATION = {"root": {"home": {"contents": {"todo.txt": {"type": "file", "content": "buy shoes"}}}}}
VAST = "Error during execution: there are more than {} entries or 50 levels of folders"


def task(*, long_context: bool = False) -> Task:
    facts = {"apis": ["GorillaFileSystem", "MathAPI", "TravelAPI"], "world": {"GorillaFileSystem": CONFIGURATION}}
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
def test_where_a_folder_lies_in_itself_nothing_is_searched_and_nothing_grows() -> None:
    world, vast = begun(), VAST.format(20_000)
    for name in ("a", "small"):
        use(world, "mkdir", dir_name=name)
    assert use(world, "du") == '{"disk_usage": "9 bytes"}'
    use(world, "cp", source="a", destination="a")
    for folder in (".", "small"):
        said = [use(world, name) for name in ("du", "find")]
        said += [use(world, name, source="a", destination="c") for name in ("cp", "mv")]
        assert [*said, use(world, "mkdir", dir_name="b")] == [vast] * 5
        if folder == ".":
            use(world, "cd", folder="small")


@both
def test_a_folder_that_its_root_no_longer_has_is_not_searched_either() -> None:
    """It is the parent of a folder that was copied with it."""
    world = begun()
    use(world, "mkdir", dir_name="old")
    use(world, "cd", folder="old")
    use(world, "mkdir", dir_name="child")
    use(world, "cd", folder="..")
    use(world, "cp", source="old", destination="new")
    use(world, "rm", file_name="old")
    for folder in ("new", "child", ".."):
        use(world, "cd", folder=folder)
    use(world, "mkdir", dir_name="a")
    assert use(world, "du") == '{"disk_usage": "0 bytes"}'
    use(world, "cp", source="a", destination="a")
    assert use(world, "du") == VAST.format(20_000)


@both
@pytest.mark.parametrize(("folders", "most", "entries"), [(100, 1, 20_000), (20, 2, 500)], ids=["long", "doubling"])
def test_copies_of_copies_are_not_searched(
    folders: int, most: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turntree.envs.bfcl.world.MAX_ENTRIES", entries)
    world = begun()
    for number in range(folders):
        use(world, "mkdir", dir_name=str(number))
        for source in range(max(0, number - most), number):
            use(world, "cp", source=str(source), destination=str(number))
    assert use(world, "du") == VAST.format(entries)
    assert pickle.loads(pickle.dumps(world)).states() == world.states()


@both
def test_what_a_call_sets_for_the_whole_process_is_its_own_and_restored() -> None:
    before, world = (mpmath.mp.prec, decimal.getcontext().prec), begun()
    digits = [5 + number % 20 for number in range(100)]
    logarithm = partial(use, world, "logarithm", value=2.0, base=10.0)
    one_by_one = [logarithm(precision=one) for one in digits]
    assert len(set(one_by_one)) == 20
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda one: logarithm(precision=one), digits)) == one_by_one
    use(world, "square_root", number=2, precision=7)
    assert (mpmath.mp.prec, decimal.getcontext().prec) == before


@both
def test_worlds_share_nothing_with_each_other_nor_with_arguments_nor_with_the_package() -> None:
    beginning = beginning_of(task(long_context=True))
    worlds = [World(), World()]
    for world in worlds:
        world.begin(beginning)
    cards = [world.apis["TravelAPI"].credit_card_list for world in worlds]
    name, card = next(iter(cards[0].items()))
    assert cards[0] == cards[1]
    card["balance"] -= 1
    use(worlds[0], "rm", file_name="todo.txt")
    assert begun(long_context=True).states() == worlds[1].states() != worlds[0].states()
    assert cards[1][name]["balance"] == card["balance"] + 1


@both
def test_the_apis_themselves_raise_share_what_they_have_and_never_end() -> None:
    """The control of all above."""
    cards = [apis.new_api("TravelAPI", {}, long_context=True).credit_card_list for _ in range(2)]
    assert all(card is cards[1][name] for name, card in cards[0].items())
    files = apis.new_api("GorillaFileSystem", CONFIGURATION, long_context=False)
    files.mkdir("a")
    files.cp("a", "a")
    with pytest.raises(RecursionError):
        files.du()
    numbers = apis.new_api("MathAPI", {}, long_context=False)
    with pytest.raises(ZeroDivisionError):
        numbers.power(0, -1)
    with mpmath.workdps(15), decimal.localcontext():
        numbers.logarithm(2, 10, precision=7)
        numbers.square_root(2, precision=7)
        assert (mpmath.mp.dps, decimal.getcontext().prec) == (7, 7)


@pytest.mark.parametrize(("version", "warnings"), [("1.0", 1), ("2026.3.23", 0)])
def test_another_version_of_the_package_is_warned_of_once(
    version: str, warnings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    about = tmp_path / f"bfcl_eval-{version}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: bfcl-eval\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING, apis.__name__):
        begun()
        use(begun(), "du")
    said = "bfcl-eval 1.0 is installed; scores may differ from those of 2026.3.23, "
    assert caplog.messages == [f"{said}as results are compared letter for letter"] * warnings


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
