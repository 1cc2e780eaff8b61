import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

import gymnasium
import pytest

from turntree.envs import Env, Task, UnknownEnvironment, list_envs, make, register, registry
from turntree.envs.arithmetic import Arithmetic


def test_the_environments_of_the_package_are_listed() -> None:
    assert {"turntree/Arithmetic-v0", "turntree/GSM8K-v0"} <= set(list_envs())
    assert list_envs() == sorted(list_envs())


def test_make_gives_the_bare_environment_with_its_spec() -> None:
    env = make("turntree/Arithmetic-v0", max_numbers=3)
    assert type(env) is Arithmetic
    assert env.max_numbers == 3
    assert env.spec is not None
    assert env.spec.id == "turntree/Arithmetic-v0"


@pytest.mark.parametrize(
    ("id", "hint"),
    [
        *[(id, "did you mean 'turntree/Arithmetic-v0'") for id in ("turntree/Arithmetics-v0", "arithmetic")],
        *[(id, "did you mean 'turntree/Arithmetic-v0'") for id in ("turntree/Arithmetic", "turntree/arithmetic-v0")],
        ("zzz", "registered are: .*turntree/GSM8K-v0"),
    ],
)
def test_an_unknown_id_names_the_nearest_or_what_there_is(id: str, hint: str) -> None:
    with pytest.raises(UnknownEnvironment, match=f"'{id}'; {hint}"):
        make(id)


def test_an_environment_of_another_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use gymnasium\.make"):
        make("CartPole-v1")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Environments registered in a test are forgotten after it."""
    before = list_envs()
    yield
    for id in set(list_envs()) - set(before):
        registry.unregister(id)


def test_a_registered_environment_is_made_with_its_default_arguments() -> None:
    register("tests/Sums-v0", Arithmetic, operators="+")
    env = make("tests/Sums-v0")
    assert isinstance(env, Arithmetic)
    assert env.operators == "+"
    assert make("tests/Sums-v0", operators="*").operators == "*"  # type: ignore[attr-defined]
    assert "tests/Sums-v0" in list_envs()
    assert isinstance(gymnasium.make("tests/Sums-v0").unwrapped, Env)
    registry.unregister("tests/Sums-v0")
    assert "tests/Sums-v0" not in {*list_envs(), *gymnasium.registry}


def test_entry_points_are_registered_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ("tests/Plugin-v0", "not an id", "turntree/Arithmetic-v0")
    points = [importlib.metadata.EntryPoint(id, "no_such_module:Env", "turntree.envs") for id in ids]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.register_with_gymnasium()
    assert set(ids) & set(list_envs()) == {"tests/Plugin-v0", "turntree/Arithmetic-v0"}
    assert type(make("turntree/Arithmetic-v0")) is Arithmetic
    with pytest.raises(ModuleNotFoundError):
        make("tests/Plugin-v0")


def test_gymnasium_makes_them_after_an_import_or_by_a_qualified_id() -> None:
    code = """
import gymnasium
env = gymnasium.make("turntree.envs:turntree/Arithmetic-v0")
import turntree.envs
gymnasium.register_envs(turntree.envs)
print(env.unwrapped.spec.id, gymnasium.make("turntree/Arithmetic-v0").unwrapped.spec.id)
"""
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown == "turntree/Arithmetic-v0 turntree/Arithmetic-v0\n"


def test_gymnasiums_default_wrappers_leave_the_episode_alone() -> None:
    env = gymnasium.make("turntree/Arithmetic-v0", tool_format="compact")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    task = Task(id="t", prompt="1+1", answer="2")
    env.reset(options={"task": task})
    for _ in range(3):
        assert env.step("calculator(1+1)")[0] == "2"
    assert env.step("#### 2")[1:4] == (1.0, True, False)
