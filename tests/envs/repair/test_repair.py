"""Repair is won by the right program and by nothing else, and nobody is told what right is."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Self
from unittest.mock import Mock

import pytest
from catalogue_policies import WINNERS, play_as
from machine_speed import patience
from tables import table

from turntree.envs import make
from turntree.envs.repair.env import share_right
from turntree.envs.repair.programs import Program, expected, find_program, programs
from turntree.envs.repair.workspace import Workspace
from turntree.envs.sandbox import CodeResult, CodeStatus


def left(files: Mapping[str, str], *, seconds: float = 0.0) -> tuple[float, dict[str, float], str]:
    """Reward, its parts and the failure of an episode with the program "cache" that leaves these files."""
    env = make("turntree/Repair-v0", seconds=seconds or patience(2.0))
    env.reset(options={"index": 3})
    env.toolset(Workspace).files = dict(files)
    _, reward, _, _, info = env.step("Done.")
    env.close()
    return reward, info["rewards"], info["failure"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_right_line_wins_every_task(split: str) -> None:
    env = make("turntree/Repair-v0", split=split)
    for index in range(env.num_tasks or 0):
        played = play_as(env, WINNERS["turntree/Repair-v0"], index)
        assert played.won, played
    env.close()


def test_the_right_modules_win_without_tests_and_faulty_ones_none_and_one_without_end_lose() -> None:
    program = find_program("cache")
    assert left(program.modules) == (1.0, {"correct": 1.0, "share": 1.0}, "")
    reward, rewards, failure = left(program.files(0) | {"test_cache.py": "import unittest\n"})
    assert (reward, rewards["correct"], failure) == (0.0, 0.0, "")
    assert 0 < rewards["share"] < 1
    assert left({}) == (0.0, {"correct": 0.0, "share": 0.0}, "")
    assert left({"cache.py": "while True: pass"}, seconds=0.5)[::2] == (0.0, "")


@pytest.mark.parametrize(("name", "source"), table(__file__, "cheats"), ids=lambda text: text[:40].strip())
def test_what_does_not_compute_the_values_loses(name: str, source: str) -> None:
    reward, rewards, failure = left({"cache.py": source})
    assert (reward, rewards["correct"], failure) == (0.0, 0.0, ""), name


class Runner:
    """Keeps what it is to run."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def run(self, code: str) -> CodeResult:
        self.seen.append(code)
        return CodeResult(status=CodeStatus.OK, stdout="", stderr="")


def given_away(code: str, program: Program) -> list[str]:
    """The longer values that a program's calls should give and that stand in code for the sandbox."""
    values = [json.dumps(json.loads(text).get("value")) for text in expected(program.name)]
    values = [value for value in values if len(value) > 12 and value not in json.dumps(program.calls)]
    return [value for value in values if value in code or json.dumps(value)[1:-1] in code]


def test_the_sandbox_is_given_calls_and_no_values() -> None:
    for program in (*programs("train"), *programs("test")):
        runner = Runner()
        share_right(program.name, {"judged": "once"}, lambda runner=runner: runner)  # type: ignore[arg-type,misc]
        (code,) = runner.seen
        assert program.calls[0][0] in code
        assert not given_away(code, program)
    assert given_away("".join(expected("matrix")), find_program("matrix"))


def test_neither_tasks_nor_openings_have_the_right_line() -> None:
    for split in ("train", "test"):
        env = make("turntree/Repair-v0", split=split)
        for index in range(env.num_tasks or 0):
            _, info = env.reset(options={"index": index})
            task = env.current_task
            fault = find_program(task.metadata["program"]).faults[task.metadata["fault"]]
            shown = json.dumps([dataclasses.asdict(task), info, env.snapshot().decode("latin-1")])
            assert json.dumps(fault.right)[1:-1] not in shown


def test_the_same_files_are_judged_once_others_again_and_a_lost_report_is_not_remembered() -> None:
    made = Mock(side_effect=Workspace().make_runner)
    files = {**find_program("runs").modules, "a": "this test's own"}
    assert [share_right("runs", files, made) for _ in range(2)] == [1.0, 1.0]
    assert made.call_count == 1
    assert share_right("runs", {**files, "runs.py": "decode = len"}, made) < 1
    assert made.call_count == 2
    files = {**find_program("runs").modules, "b": "this test's own"}
    assert share_right("runs", files, Runner) == 0  # type: ignore[arg-type,return-value]
    assert share_right("runs", files, Workspace().make_runner) == 1
