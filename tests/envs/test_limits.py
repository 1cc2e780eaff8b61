import threading
from collections.abc import Sequence
from typing import Any

import pytest
from machine_speed import not_hanging, patience
from playing import Errand, call, made_up, play

from turntree.agents.episodes.episode import StopReason
from turntree.envs import EnvStop, Limits, Message, Reply, ToolError, ToolExecutor

GATE = threading.Event()


@made_up
def work(kind: str) -> str:
    if kind == "wrong":
        raise ToolError("that is wrong")
    if kind == "slow":
        GATE.wait(1000)
    return "done"


class Office(Errand):
    tools = (work,)

    def reply(self, message: Message) -> Reply:
        return Reply(messages=[], done=message.content == "end")


def calls(*kinds: str) -> str:
    return "".join(call(Office(), "work", kind=kind) for kind in kinds)


MALFORMED = "<tool_call>{</tool_call>"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr("turntree.envs.progress.monotonic", lambda: time[0])
    return time


def stops(limits: Limits, actions: Sequence[str], **attributes: Any) -> list[str]:
    env = Office(limits=limits)
    vars(env).update(attributes)
    return [step[4]["stop_reason"] for step in play(env, actions)]


@pytest.mark.parametrize(
    "action", [MALFORMED, calls("wrong"), calls("wrong", "wrong"), '<tool_call>{"name": "x"}</tool_call>']
)
def test_errors_in_a_row_end_the_episode(action: str) -> None:
    assert stops(Limits(max_errors=2), [action, action]) == ["", "max_errors"]
    assert stops(Limits(), [action] * 4) == [""] * 4


@pytest.mark.parametrize("good", [calls("fine"), calls("wrong", "fine"), "words"])
def test_a_turn_that_is_no_error_begins_the_row_anew(good: str) -> None:
    row = [MALFORMED, good, MALFORMED, calls("wrong")]
    assert stops(Limits(max_errors=2), row) == ["", "", "", "max_errors"]


@pytest.mark.parametrize(
    ("later", "action", "reason"), [(29, calls("fine"), ""), (31, "words", "max_seconds"), (31, "end", "done")]
)
def test_seconds_end_an_episode_that_its_task_has_not_decided(now: list, later: int, action: str, reason: str) -> None:
    env = Office(limits=Limits(max_seconds=30))
    env.reset(seed=0)
    now[0] += later
    _, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info["stop_reason"]) == (reason == "done", reason == "max_seconds", reason)


@pytest.mark.parametrize("executor", [ToolExecutor(), ToolExecutor(seconds=900)])
def test_a_tool_that_is_at_work_when_the_seconds_are_over_is_given_up(executor: ToolExecutor) -> None:
    GATE.clear()
    with not_hanging(60):
        assert stops(Limits(max_seconds=0.1), [calls("fine", "slow")], executor=executor) == ["max_seconds"]
    GATE.set()


def test_a_late_tool_within_the_seconds_is_an_error_for_the_model() -> None:
    GATE.clear()
    executor = ToolExecutor(seconds=patience(0.3))  # time for a busy machine to begin the call
    row = [calls("slow"), calls("slow")]
    assert stops(Limits(max_seconds=900, max_errors=2), row, executor=executor) == ["", "max_errors"]
    GATE.set()


def test_a_snapshot_keeps_the_seconds_and_the_errors(now: list[float]) -> None:
    env = Office(limits=Limits(max_seconds=30, max_errors=2))
    env.reset(seed=0)
    env.step(MALFORMED)
    now[0] += 20
    state = env.snapshot()
    for action, later, reason in ((MALFORMED, 1, "max_errors"), ("words", 11, "max_seconds"), ("words", 9, "")):
        now[0] += 1000
        other = Office(limits=Limits(max_seconds=30, max_errors=2))
        other.restore(state)
        now[0] += later
        assert other.step(action)[4]["stop_reason"] == reason


def test_the_loop_knows_every_reason_of_an_environment_and_the_tighter_bound_wins() -> None:
    assert {str(stop) for stop in EnvStop if stop} <= {str(reason) for reason in StopReason}
    ours, theirs = Limits(max_seconds=1.5, max_errors=None), Limits(max_seconds=9, max_errors=3)
    assert (ours.within(theirs).max_seconds, ours.within(theirs).max_errors) == (1.5, 3)


@pytest.mark.parametrize(
    "bound", [{"max_turns": 0}, {"max_errors": 1.5}, {"max_seconds": 0}, {"max_seconds": "3"}, {"max_tool_calls": -1}]
)
def test_bounds_that_make_no_sense_are_refused(bound: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Limits.{next(iter(bound))} must be a positive"):
        Limits(**bound)
