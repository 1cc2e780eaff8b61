import pickle
import threading
import time
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from machine_speed import patience

from turntree.envs import ToolError, ToolExecutor
from turntree.envs.running.executor import Job, ToolFailure, cut


def job(run: Callable[[], str], *, shares_state: bool = False) -> Job:
    return Job(name="search", run=run, shares_state=shares_state)


def say(text: str, seconds: float = 0.0) -> Callable[[], str]:
    def run() -> str:
        time.sleep(seconds)
        return text

    return run


@pytest.fixture
def stuck() -> Iterator[Callable[[], str]]:
    gate = threading.Event()
    yield lambda: str(gate.wait(patience(30)))
    gate.set()


@pytest.mark.parametrize("seconds", [None, 1000.0])
@pytest.mark.parametrize("shares_state", [False, True])
def test_outcomes_stand_in_the_order_of_the_calls(seconds: float | None, shares_state: bool) -> None:
    executor = ToolExecutor(seconds=seconds)
    jobs = [job(say(str(i), 0.01 * (5 - i)), shares_state=shares_state) for i in range(5)]
    assert [outcome.text for outcome in executor.run(jobs)] == ["0", "1", "2", "3", "4"]


def test_calls_without_state_run_at_once_and_those_with_state_one_after_another() -> None:
    meeting = threading.Barrier(3, timeout=patience(10))

    def meet() -> str:
        meeting.wait()
        return "met"

    assert [o.text for o in ToolExecutor(seconds=1000).run([job(meet)] * 3)] == ["met"] * 3
    running: list[int] = []

    def alone() -> str:
        running.append(1)
        time.sleep(0.005)
        assert len(running) == 1
        running.pop()
        return "alone"

    outcomes = ToolExecutor(seconds=1000).run([job(alone, shares_state=True)] * 4)
    assert [outcome.text for outcome in outcomes] == ["alone"] * 4


def test_without_a_deadline_everything_runs_in_the_thread_of_the_caller() -> None:
    name = threading.current_thread().name
    executor = ToolExecutor()
    assert [o.text for o in executor.run([job(lambda: threading.current_thread().name)] * 2)] == [name, name]
    with_deadline = ToolExecutor(seconds=1000).run([job(lambda: threading.current_thread().name)])
    assert with_deadline[0].text != name


def test_a_late_call_is_given_up_at_its_deadline_or_the_episodes_and_told_to_the_model(stuck):
    executor = ToolExecutor(seconds=patience(0.2))
    first, late, last = executor.run([job(say("a")), job(stuck), job(say("b"))])
    assert (first.text, last.text) == ("a", "b")
    assert isinstance(late.error, ToolError)
    assert str(late.error) == f"search took longer than {executor.seconds:g} s and was abandoned"
    assert late.late
    [outcome] = ToolExecutor(seconds=900).run([job(stuck)], seconds=patience(0.2))
    assert outcome.late


def test_a_late_call_with_state_is_a_failure_and_nothing_runs_after_it(stuck: Callable[[], str]) -> None:
    ran: list[int] = []
    late = job(stuck, shares_state=True)
    outcomes = ToolExecutor(seconds=0.1).run([late, job(lambda: str(ran.append(1)), shares_state=True)])
    assert len(outcomes) == 1
    assert outcomes[0].failed
    assert ran == []


def test_a_call_that_found_no_thread_is_a_failure_not_the_fault_of_the_model(stuck: Callable[[], str]) -> None:
    executor = ToolExecutor(seconds=patience(0.2), max_workers=1)
    late, never = executor.run([job(stuck), job(say("x"))])
    assert not late.failed
    assert isinstance(never.error, ToolFailure)
    assert "all 1 threads were busy" in str(never.error)


def test_errors_are_told_apart_long_output_is_cut_and_a_pickled_executor_has_the_same_bounds() -> None:
    ran: list[int] = []
    fails = [job(Mock(side_effect=error)) for error in (ToolError("no such item"), OSError("gone"))]
    said, failed = ToolExecutor().run([*fails, job(lambda: str(ran.append(1)))])
    assert (said.failed, failed.failed, ran) == (False, True, [])
    [outcome] = ToolExecutor(max_output=10).run([job(say("x" * 1000 + "end"))])
    assert outcome.text == "xxxxx\n[... 993 characters left out ...]\nxxend"
    assert cut("x" * 300, None) == "x" * 300
    executor = ToolExecutor(seconds=3, max_output=7, max_workers=2)
    executor.run([job(say("started"))])
    copy = pickle.loads(pickle.dumps(executor))
    assert (copy.seconds, copy.max_output, copy.max_workers) == (3, 7, 2)


@pytest.mark.parametrize("bound", [{"seconds": 0}, {"max_output": -1}, {"max_workers": 0}])
def test_bounds_that_allow_nothing_are_refused(bound: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ToolExecutor(**bound)
