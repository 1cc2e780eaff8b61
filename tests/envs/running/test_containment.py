import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from escaping import NAMED, RAISED, TASKS, Escaping, break_by
from playing import play

from turntree.envs import ToolExecutor
from turntree.envs.errors import Escape
from turntree.envs.failure import describe
from turntree.envs.running.containment import contain


def in_a_thread(how: str) -> BaseException | None:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contain, lambda: break_by(how)).exception()


@pytest.mark.parametrize("how", NAMED)
def test_whatever_is_raised_leaves_as_an_exception_that_names_it(how: str) -> None:
    error = in_a_thread(how)
    assert isinstance(error, Exception)
    assert describe(error) == NAMED[how]
    assert isinstance(error, Escape) == (how != "error")
    assert error is RAISED[how] if how == "error" else error.__cause__ is RAISED.get(how, error.__cause__)


def test_the_users_interrupt_goes_through_and_what_is_returned_too() -> None:
    with pytest.raises(KeyboardInterrupt):
        contain(lambda: break_by("interrupt"))
    assert contain(lambda: break_by("well")) == "fine"


def test_os_exit_ends_a_fork_and_what_runs_beside_the_environment() -> None:
    assert contain(lambda: break_by("fork")) == "7"
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("seconds", [None, 1000.0])
@pytest.mark.parametrize("part", ["tool", "reply"])
@pytest.mark.parametrize("how", NAMED)
def test_an_episode_that_it_ends_is_a_failure_that_names_the_part(part: str, how: str, seconds: float | None) -> None:
    env, steps = Escaping(), []
    env.executor = ToolExecutor(seconds=seconds)
    turns = [f"breaks({how})" if part == "tool" else f"I say {how}"]
    thread = threading.Thread(target=lambda: steps.extend(play(env, turns, len(TASKS))))
    thread.start()  # in the main thread an interrupt is the user's
    thread.join()
    info = steps[0][4]
    where = "tool 'breaks'" if part == "tool" else "reply()"
    assert (info["stop_reason"], info["failure"]) == ("failure", f"{where} raised {NAMED[how]}")
    assert info["failure_kind"] == ("tool" if part == "tool" else "environment")
