from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turntree.envs.message import Message
from turntree.envs.task import Task


class SimulatedUser(Protocol):
    """The customer who opens the dialogue and answers the agent."""

    def open(self, task: Task) -> str:
        """Return the first message."""

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """Answer the last message of ``dialogue``; ``None`` means that the customer leaves."""


class ScriptedUser:
    """States the whole request at once, agrees to every question, and leaves when nothing is asked.

    Deterministic, so an episode depends on the agent alone. Unlike a person or a model, it withholds nothing, does not
    change its mind and does not correct the agent.
    """

    def open(self, task: Task) -> str:
        return f"I was told this about my request, and give it to you as it is:\n{task.prompt}"

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        if "?" not in dialogue[-1].content:
            return None
        return "Yes, please go ahead. I have nothing to add; for anything else, do as I wrote."
