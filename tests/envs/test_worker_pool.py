import subprocess
import sys
import threading
import time

import pytest

from turntree.envs import WorkerPool


def test_results_and_errors_come_back_through_the_future() -> None:
    with WorkerPool(2) as pool:
        assert pool.submit(divmod, 7, 2).result(timeout=10) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result(timeout=10)


def test_no_more_threads_are_started_than_calls_wait() -> None:
    with WorkerPool(8) as pool:
        for _ in range(20):
            pool.submit(int).result(timeout=10)
            time.sleep(0.001)
        assert pool.num_threads <= 2


def test_calls_beyond_the_bound_wait_for_their_turn() -> None:
    gate, running = threading.Event(), []
    with WorkerPool(2) as pool:
        futures = [pool.submit(lambda i=i: (running.append(i), gate.wait(10))) for i in range(5)]
        time.sleep(0.05)
        assert sorted(running) == [0, 1]
        gate.set()
        assert all(future.result(timeout=10)[1] for future in futures)
        assert pool.num_threads == 2


def test_a_call_that_is_given_up_makes_room_for_others() -> None:
    gate = threading.Event()
    with WorkerPool(1) as pool:
        stuck = pool.submit(gate.wait, 10)
        after = pool.submit(lambda: "went on")
        with pytest.raises(TimeoutError):
            after.result(timeout=0.05)
        pool.give_up(stuck)
        assert after.result(timeout=10) == "went on"
        assert pool.num_threads == 1
        gate.set()


def test_a_call_that_has_not_begun_is_cancelled_when_given_up() -> None:
    gate = threading.Event()
    with WorkerPool(1) as pool:
        pool.submit(gate.wait, 10)
        waiting = pool.submit(int)
        pool.give_up(waiting)
        gate.set()
        assert waiting.cancelled()


def test_idle_threads_end() -> None:
    pool = WorkerPool(4, idle_seconds=0.01)
    pool.submit(int).result(timeout=10)
    deadline = time.monotonic() + 5
    while pool.num_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pool.num_threads == 0
    assert pool.submit(int).result(timeout=10) == 0


def test_nothing_is_taken_after_the_end() -> None:
    pool = WorkerPool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_a_stuck_call_does_not_keep_the_interpreter_from_ending() -> None:
    code = "import time; from turntree.envs import WorkerPool; WorkerPool(1).submit(time.sleep, 60); time.sleep(0.1)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        WorkerPool(0)
