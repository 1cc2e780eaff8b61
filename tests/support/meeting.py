"""Episodes that can only advance if all of them are inside a tool at the same time."""

import asyncio
from collections.abc import Callable
from threading import Barrier
from typing import Any, ClassVar

from machine_speed import patience
from playing import made_up

from turntree.envs import Env, Message, Reply, Task

PEOPLE = 16


class Meeting(Env):
    barrier: ClassVar[Barrier]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tool_format="compact", describes_tools=True, **kwargs)

    @made_up
    def meet(self, where: str) -> str:
        self.barrier.wait()
        return "all here"

    @made_up
    async def meet_later(self, where: str) -> str:
        await asyncio.to_thread(self.barrier.wait)
        return "all here"

    def task(self, index: int) -> Task:
        return Task(id=f"meeting/{index}", prompt="Meet the others.")

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float("all here" in [said.content for said in self.messages]), done=True)


class Hasty(Meeting):
    step_inline = True


def policy(renderer: Any, call: str) -> Callable[[tuple[int, ...]], str]:
    """Call once, then answer; the other episodes have ``patience(20)`` to arrive."""
    Meeting.barrier = Barrier(PEOPLE, timeout=patience(20))
    return lambda prompt: "done" if "all here" in renderer.decode(prompt) else f"{call}(here)"
