"""The customer who talks to the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turntree.envs.message import Message
from turntree.envs.task import Task


class SimulatedUser(Protocol):
    """Opens the dialogue and answers the agent."""

    def open(self, task: Task) -> str:
        """The first message."""

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """The answer to the agent's last message, the last of ``dialogue``; ``None`` to leave."""


class ScriptedUser:
    """States the whole request at once, agrees to every question, and leaves when nothing is asked.

    Deterministic, so that an episode depends on the agent alone. It does not withhold anything, change its
    mind or correct the agent, as a person or a model in its place would.
    """

    def open(self, task: Task) -> str:
        """The request in the words of the task."""
        return f"I was told this about my request, and give it to you as it is:\n{task.prompt}"

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """Agree while the agent asks."""
        if "?" not in dialogue[-1].content:
            return None
        return "Yes, please go ahead. I have nothing to add; for anything else, do as I wrote."
