"""Environments of OpenEnv, run in this process or reached through a synchronous client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.message import Message, Role
from turntree.envs.reply import Reply
from turntree.envs.task import Task


class OpenEnv(Env):
    """Gives each turn to an OpenEnv environment as an action.

    The environment is anything with OpenEnv's ``reset(seed=)`` and ``step(action)``; results with an
    ``observation`` inside (clients) and bare observations (servers) are both read.
    """

    static_attributes = Env.static_attributes | {"_make", "_to_action", "_to_text", "_name"}

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        to_action: Callable[[str], Any],
        to_text: Callable[[Any], str],
        name: str = "openenv",
        **kwargs: Any,
    ) -> None:
        """Set up the adapter.

        Args:
            to_action: The text of a turn as the environment's action.
            to_text: An observation as text.
            name: Prefix of task ids.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._make, self._to_action, self._to_text, self._name = make, to_action, to_text, name
        self._served: Any = None

    def task(self, index: int) -> Task:
        """The episode that this seed begins."""
        return Task(id=f"{self._name}/{index}", prompt="", data_source=self._name, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Begin the environment's episode."""
        self._served = self._served or self._make()
        return self._say(self._served.reset(seed=task.metadata["seed"]))

    def reply(self, message: Message) -> Reply:
        """Take one step."""
        result = self._served.step(self._to_action(message.content))
        return Reply(messages=self._say(result), reward=float(result.reward or 0.0), done=bool(result.done))

    def close(self) -> None:
        """Close the environment."""
        served, self._served = self._served, None
        if served is not None and hasattr(served, "close"):
            served.close()
        super().close()

    def _say(self, result: Any) -> list[Message]:
        return [Message(role=Role.USER, content=self._to_text(getattr(result, "observation", result)))]
