import threading
from collections.abc import Iterator

import pytest
from interpreter import python
from machine_speed import eventually, patience

from turntree.envs import WorkerPool


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def test_results_and_errors_come_back_idle_threads_end_and_nothing_is_taken_after_the_end() -> None:
    with WorkerPool(2) as pool:
        assert pool.submit(divmod, 7, 2).result(timeout=patience(10)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result(timeout=patience(10))
    pool = WorkerPool(4, idle_seconds=0.01)
    pool.submit(int).result(timeout=patience(10))
    eventually(lambda: pool.num_threads == 0)
    assert pool.submit(int).result(timeout=patience(10)) == 0
    with pytest.raises(ValueError, match="max_workers must be at least 1"):
        WorkerPool(0)
    pool = WorkerPool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_no_more_threads_are_started_than_calls_wait() -> None:
    with WorkerPool(8) as pool:
        for _ in range(20):
            pool.submit(int).result(timeout=patience(10))
            eventually(lambda: pool.num_idle == pool.num_threads)
        assert pool.num_threads == 1


def test_calls_beyond_the_bound_wait_for_their_turn(gate: threading.Event) -> None:
    running: list[int] = []
    with WorkerPool(2) as pool:
        futures = [pool.submit(lambda i=i: (running.append(i), gate.wait(1000))) for i in range(5)]
        eventually(lambda: len(running) == 2)
        assert sorted(running) == [0, 1]
        gate.set()
        assert all(future.result(timeout=patience(10))[1] for future in futures)
        assert pool.num_threads == 2


def test_a_call_that_is_given_up_makes_room_for_others_or_is_cancelled(gate: threading.Event) -> None:
    with WorkerPool(1) as pool:
        stuck = pool.submit(gate.wait, 1000)
        after = pool.submit(lambda: "went on")
        with pytest.raises(TimeoutError):
            after.result(timeout=0.05)
        pool.give_up(stuck)
        assert after.result(timeout=patience(10)) == "went on"
        assert pool.num_threads == 1
    with WorkerPool(1) as pool:
        pool.submit(gate.wait, 1000)
        waiting = pool.submit(int)
        pool.give_up(waiting)
        gate.set()
        assert waiting.cancelled()


def test_a_stuck_call_does_not_keep_the_interpreter_from_ending() -> None:
    code = "import time; from turntree.envs import WorkerPool; WorkerPool(1).submit(time.sleep, 1000); time.sleep(0.1)"
    python("-c", code, check=True)
