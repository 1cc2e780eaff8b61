"""The workspace: files are an episode's state, commands run in the sandbox, and what they leave is checked."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
from machine_speed import patience
from playing import call, use
from tables import table

from turntree.envs import Env, ToolError, make
from turntree.envs.repair import workspace
from turntree.envs.repair.shell import run_command
from turntree.envs.repair.workspace import Workspace
from turntree.envs.sandbox import CodeResult, CodeStatus, Isolation, PythonSandbox, SandboxError

NUMBER = 3
"""A task with the program "cache"."""


@pytest.fixture
def seconds() -> float:
    return patience(2.0)


@pytest.fixture
def env(seconds: float) -> Iterator[Env]:
    env = make("turntree/Repair-v0", seconds=seconds)
    env.reset(options={"index": NUMBER})
    yield env
    env.close()


def shell(env: Env, command: str) -> str:
    return use(env, "shell", command=command)


def files(env: Env) -> dict[str, str]:
    return env.toolset(Workspace).files


def test_what_a_command_changes_makes_and_removes_stays_so(env: Env) -> None:
    assert "cache.py" in files(env)
    command = "mkdir -p notes; echo one > notes/a.txt; printf 'x\\r\\n' > b; rm README.md; ln -s b c"
    assert shell(env, command) == "(no output)"
    assert files(env)["notes/a.txt"] == "one\n"
    assert files(env)["b"] == "x\r\n"
    assert not {"README.md", "c"} & set(files(env))
    assert shell(env, "cat notes/a.txt; ls; false") == "one\nb\ncache.py\nnotes\ntest_cache.py\n(exit code 1)"
    assert shell(env, "head -c 9 /dev/urandom > d; rm b") == "(not kept, no text: d)"
    assert "d" not in files(env)


def test_tests_run_and_say_the_same_twice_and_much_output_is_cut_in_the_middle(env: Env) -> None:
    said = shell(env, "python -m unittest")
    assert said == shell(env, "python3 -m unittest")
    assert 'File "test_cache.py", line ' in said
    assert "\nRan 5 tests\n" in said
    assert said.endswith("\n(exit code 1)")
    assert set(files(env)) == {"README.md", "cache.py", "test_cache.py"}
    said = shell(env, "seq 1 20000")
    assert said.startswith("1\n2\n")
    assert said.endswith("\n20000")
    assert " characters left out ...]" in said
    assert len(said) < 7000


@pytest.mark.parametrize(("command", "complaint"), table(__file__, "bad_commands"))
def test_a_command_that_fails_leaves_the_files_as_they_were(
    env: Env, seconds: float, command: str, complaint: str
) -> None:
    before = dict(files(env))
    said = shell(env, f"echo new > new.txt; {command}")
    assert said.startswith("Error: ")
    assert complaint.format(seconds=seconds) in said
    assert said.endswith("the files are as they were before")
    assert files(env) == before
    assert shell(env, "ls").split() == sorted(before)


@pytest.mark.parametrize("report", table(__file__, "forged_reports"))
def test_a_report_that_is_no_workspace_is_the_commands_fault(report: str) -> None:
    runner = Mock(**{"run.return_value": CodeResult(status=CodeStatus.OK, stdout=f"\n{report}\n", stderr="")})
    with pytest.raises(ToolError, match="the files are as they were before"):
        run_command(runner, "true", {})


@pytest.mark.parametrize(("arguments", "complaint"), table(__file__, "bad_edits"))
def test_an_edit_that_does_not_fit_says_why(env: Env, arguments: dict[str, Any], complaint: str) -> None:
    before = dict(files(env))
    assert complaint in use(env, "edit", **arguments)
    assert files(env) == before


def test_edits_and_lines(env: Env) -> None:
    said = use(env, "edit", path="cache.py", old="class Cache:", new="class Cache:\n    # here")
    assert said == "Replaced in cache.py, line 6."
    assert use(env, "read", path="cache.py", first=6, last=7) == "6 class Cache:\n7     # here"
    assert use(env, "read", path="cache.py", first=-3, last=1).startswith("1 ")
    assert "has the lines 1 to " in use(env, "read", path="cache.py", first=500)
    edit = call(env, "edit", path="cache.py", old="# here", new="?").replace("?", "\\ud800")
    assert "half of a surrogate" in env.step(edit)[0]
    files(env)["long.txt"] = "x\n" * 500
    assert use(env, "read", path="long.txt").endswith("\n200 x\n[... lines 201 to 500 ...]")
    assert use(env, "edit", path="long.txt", old="x\n" * 500, new="x" * 200_001).endswith("as they were before")


def test_a_snapshot_and_a_fork_have_files_of_their_own(env: Env) -> None:
    shell(env, "echo one > note")
    state = env.snapshot()
    fork = env.fork(state)
    shell(fork, "echo two > note")
    assert files(env)["note"] == "one\n"
    shell(env, "rm note")
    env.restore(state)
    assert shell(env, "cat note") == "one"
    assert shell(fork, "cat note") == "two"
    fork.close()
    env.reset(options={"index": NUMBER})
    assert "note" not in files(env)


def test_the_right_programs_cannot_be_read_from_within(env: Env) -> None:
    folder = Path(workspace.__file__).parent
    assert (folder / "programs.toml").is_file()
    assert "No such file" in shell(env, f"cat {folder}/programs.toml")
    assert "No module named 'turntree'" in shell(env, "python -c 'import turntree.envs.repair.programs'")


def test_a_sandbox_that_would_show_them_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Workspace().exposure()
    monkeypatch.setattr(workspace, "__file__", os.__file__)
    assert "where the right programs are; install turntree in a virtual environment" in Workspace().exposure()
    weak = Mock(files=True, wanted=Isolation.AUTO, **{"weakness.return_value": "it is weak"})
    weak.__enter__, weak.__exit__ = Mock(return_value=weak), Mock(return_value=None)
    monkeypatch.setattr(Workspace, "make_runner", lambda self: weak)
    assert Workspace().exposure() == "it is weak"
    weak.wanted = Isolation.PROCESS
    assert Workspace().exposure() == ""


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
def test_packages_of_the_environment_are_not_shown() -> None:
    runner = Workspace().make_runner()
    assert runner.shows(Path(os.__file__))
    assert not runner.shows(Path(numpy.__file__))
    assert not Path(runner.python).is_relative_to(sys.prefix)
    assert PythonSandbox().shows(Path(numpy.__file__))


@pytest.mark.parametrize("turn", ["shell", "done"])
def test_a_sandbox_that_fails_is_a_failure_of_the_infrastructure(env: Env, monkeypatch, turn: str) -> None:
    broken = Mock(**{"run.side_effect": SandboxError("no room")})
    broken.__enter__, broken.__exit__ = Mock(return_value=broken), Mock(return_value=None)
    monkeypatch.setattr(Workspace, "make_runner", lambda self: broken)
    files(env)["other"] = "no other test has judged this"
    _, reward, terminated, truncated, info = env.step(call(env, "shell", command="ls") if turn == "shell" else "Done.")
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "failure")
    assert "no room" in info["failure"]
