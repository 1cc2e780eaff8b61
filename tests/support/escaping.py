"""An environment whose code raises what is no ``Exception``, in each of its parts, hangs, or ends its process."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playing import made_up

from turntree.envs import Env, Message, Reply, Task

HOLD = threading.Event()
"""Lets what hangs go on."""


@contextmanager
def held() -> Iterator[None]:
    """What hangs does so until the end of the block."""
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
"""What the failure says of each way to break."""


def break_by(how: str) -> str:
    """Break; ``hang`` returns after ``HOLD``."""
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
WELL = 2
"""Tasks after them that are answered; the last one hangs."""


class Escaping(Env):
    """Each task names a part and how it breaks there."""

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
    """The turn that breaks what the task names."""
    part, how = prompt.split()
    return f"breaks({how})" if part == "tool" else f"I say {how}"


class Quick(Escaping):
    """In the event loop."""

    step_inline = True


class Unmade(Escaping):
    """Cannot be made."""

    def __init__(self, **_: Any) -> None:
        raise SystemExit(0)
