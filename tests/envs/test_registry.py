import importlib.metadata
import subprocess
import sys

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
    "id", ["turntree/Arithmetics-v0", "turntree/Arithmetic", "arithmetic", "turntree/arithmetic-v0"]
)
def test_an_unknown_id_names_the_nearest(id: str) -> None:
    with pytest.raises(UnknownEnvironment, match=f"'{id}'; did you mean 'turntree/Arithmetic-v0'"):
        make(id)


def test_an_id_that_is_near_to_none_lists_what_there_is() -> None:
    with pytest.raises(UnknownEnvironment, match=r"registered are: .*turntree/GSM8K-v0"):
        make("zzz")


def test_an_environment_of_another_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use gymnasium\.make"):
        make("CartPole-v1")


def test_a_registered_environment_is_made_with_its_default_arguments() -> None:
    register("tests/Sums-v0", Arithmetic, operators="+")
    try:
        env = make("tests/Sums-v0")
        assert isinstance(env, Arithmetic)
        assert env.operators == "+"
        assert make("tests/Sums-v0", operators="*").operators == "*"  # type: ignore[attr-defined]
        assert "tests/Sums-v0" in list_envs()
        assert isinstance(gymnasium.make("tests/Sums-v0").unwrapped, Env)
    finally:
        gymnasium.registry.pop("tests/Sums-v0")
        registry._registered.discard("tests/Sums-v0")


def test_entry_points_are_registered_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("tests/Plugin-v0", "no_such_module:Env", "turntree.envs"),
        importlib.metadata.EntryPoint("not an id", "no_such_module:Env", "turntree.envs"),
        importlib.metadata.EntryPoint("turntree/Arithmetic-v0", "no_such_module:Env", "turntree.envs"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.register_with_gymnasium()
    try:
        assert "tests/Plugin-v0" in list_envs()
        assert "not an id" not in list_envs()
        assert type(make("turntree/Arithmetic-v0")) is Arithmetic
        with pytest.raises(ModuleNotFoundError):
            make("tests/Plugin-v0")
    finally:
        gymnasium.registry.pop("tests/Plugin-v0")
        registry._registered.discard("tests/Plugin-v0")


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_gymnasium_makes_them_after_an_import_or_by_a_qualified_id() -> None:
    code = """
import gymnasium
env = gymnasium.make("turntree.envs:turntree/Arithmetic-v0")
import turntree.envs
gymnasium.register_envs(turntree.envs)
print(env.unwrapped.spec.id, gymnasium.make("turntree/Arithmetic-v0").unwrapped.spec.id)
"""
    assert run_python(code) == "turntree/Arithmetic-v0 turntree/Arithmetic-v0"


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = ("torch", "verl", "ray", "transformers", "datasets", "pyarrow", "tokenizers")
    code = f"import sys, turntree.envs, turntree.rewards; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_gymnasiums_default_wrappers_leave_the_episode_alone() -> None:
    env = gymnasium.make("turntree/Arithmetic-v0", tool_format="compact")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    task = Task(id="t", prompt="1+1", answer="2")
    env.reset(options={"task": task})
    for _ in range(3):
        assert env.step("calculator(1+1)")[0] == "2"
    assert env.step("#### 2")[1:4] == (1.0, True, False)
