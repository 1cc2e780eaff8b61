from typing import Any
from unittest.mock import Mock

import pytest
from machine_speed import patience
from playing import Errand, call, use

from turntree.envs import Env, require_conformance
from turntree.envs.sandbox import PythonTool, SandboxError, SandboxLimits

SECONDS = patience(1.0)


class Bench(Errand):
    toolsets = (PythonTool(session=True, limits=SandboxLimits(seconds=SECONDS)),)


def say(env: Env, code: str) -> str:
    return use(env, "python", code=code)


@pytest.fixture
def bench() -> Any:
    env = Bench()
    env.reset(seed=0)
    yield env
    env.close()


def test_state_lasts_through_an_episode_and_errors_and_a_lost_session_are_told_to_the_model(bench: Bench) -> None:
    assert say(bench, "x = 20") == "(no output)"
    assert say(bench, "x + 1") == "21"
    bench.reset(seed=0)
    assert "NameError: name 'x' is not defined" in say(bench, "x")
    said = say(bench, "print('so far')\n1/0")
    assert said.startswith("Error: so far\nTraceback")
    assert "ZeroDivisionError" in said
    say(bench, "x = 1")
    said = say(bench, "import time; time.sleep(1000)")
    assert said.endswith(f"stopped after {SECONDS:g} s\nThe session was restarted: its variables are lost.")


def test_a_snapshot_brings_the_variables_back(bench: Bench) -> None:
    say(bench, "x = [1]")
    state = bench.snapshot()
    say(bench, "x.append(2)")
    bench.restore(state)
    assert say(bench, "x") == "[1]"


def test_a_sandbox_that_fails_is_a_failure_of_the_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(**{"run.side_effect": SandboxError("no room")})
    monkeypatch.setattr(PythonTool, "make_runner", lambda self: broken)
    env = Bench()
    env.reset(seed=0)
    *_, info = env.step(call(env, "python", code="1"))
    assert info["failure"] == "tool 'python' raised SandboxError: no room"


def test_an_environment_with_python_keeps_the_rules() -> None:
    turn = call(Bench(), "python", code="x = 1\nx")
    require_conformance(Bench, turns=[turn, "Done."])
