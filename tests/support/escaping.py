"""An environment that raises a ``BaseException``, hangs or exits, in each of its parts."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playing import made_up

from turntree.envs import Env, Message, Reply, Task

HOLD = threading.Event()  #: releases what hangs


@contextmanager
def held() -> Iterator[None]:
    HOLD.clear()
    try:
        yield
    finally:
        HOLD.set()


class Own(BaseException):
    """Of a library that means well."""


RAISED: dict[str, BaseException] = {
    "exit": SystemExit(0),
    "cancelled": asyncio.CancelledError(),
    "closed": GeneratorExit(),
    "interrupt": KeyboardInterrupt(),
    "group": BaseExceptionGroup("two", [SystemExit(3)]),
    "own": Own("odd"),
    "stop": StopIteration(),
    "error": OSError("the disk is full"),
}
#: what ``failure`` names for each way to break
NAMED = {
    "exit": "SystemExit: 0",
    "cancelled": "CancelledError",
    "closed": "GeneratorExit",
    "interrupt": "KeyboardInterrupt",
    "group": "BaseExceptionGroup: two (1 sub-exception)",
    "own": "Own: odd",
    "stop": "StopIteration",
    "error": "OSError: the disk is full",
    "process": "SystemExit: os._exit(0)",
}


def break_by(how: str) -> str:
    """Break in the given way; ``hang`` returns after ``HOLD``."""
    if how in RAISED:
        raise RAISED[how]
    if how == "process":
        os._exit(0)
    if how == "fork":  # a process of its own ends as it likes
        child = os.fork()
        if not child:
            os._exit(7)
        return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return str(HOLD.wait(300)) if how == "hang" else "fine"


@made_up
def breaks(how: str) -> str:
    return break_by(how)


TASKS = [f"{part} {how}" for part in ("tool", "reply", "reset") for how in NAMED]
WELL = 2  #: tasks after the broken ones that must be answered; the last one hangs


class Escaping(Env):
    """Each task names a part of the environment and how it breaks there."""

    tools = (breaks,)
    num_tasks = len(TASKS) + WELL + 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"tool_format": "compact", "describes_tools": True, **kwargs})

    def task(self, index: int) -> Task:
        return Task(id=f"escaping/{index}", prompt=[*TASKS, *["reply well"] * WELL, "tool hang"][index], answer="5")

    def start(self, task: Task) -> list[Message]:
        part, how = task.prompt.split()
        if part == "reset":
            break_by(how)
        return list(super().start(task))

    def reply(self, message: Message) -> Reply:
        break_by(message.content.rpartition(" ")[2])
        return Reply(reward=1.0, done=True)


def policy(prompt: str) -> str:
    part, how = prompt.split()
    return f"breaks({how})" if part == "tool" else f"I say {how}"


class Quick(Escaping):
    step_inline = True


class Unmade(Escaping):
    def __init__(self, **_: Any) -> None:
        raise SystemExit(0)
