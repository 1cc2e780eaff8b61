from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.message import Message, Reply, Role
from turntree.envs.task import Task


class OpenEnv(Env):
    """Plays an OpenEnv environment, in this process or through a synchronous client; each turn is an action.

    The environment needs OpenEnv's ``reset(seed=)`` and ``step(action)``. It may return results with an ``observation``
    (clients) or bare observations (servers).
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
            make: Creates the OpenEnv environment.
            to_action: Converts the text of a turn to an action.
            to_text: Converts an observation to text.
            name: Prefix of task ids.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._make, self._to_action, self._to_text, self._name = make, to_action, to_text, name
        self._served: Any = None

    def task(self, index: int) -> Task:
        return Task(id=f"{self._name}/{index}", prompt="", data_source=self._name, metadata={"seed": index})

    def start(self, task: Task) -> Sequence[Message]:
        self._served = self._served or self._make()
        return self._messages(self._served.reset(seed=task.metadata["seed"]))

    def reply(self, message: Message) -> Reply:
        result = self._served.step(self._to_action(message.content))
        return Reply(messages=self._messages(result), reward=float(result.reward or 0.0), done=bool(result.done))

    def close(self) -> None:
        served, self._served = self._served, None
        if served is not None and hasattr(served, "close"):
            served.close()
        super().close()

    def _messages(self, result: Any) -> list[Message]:
        return [Message(role=Role.USER, content=self._to_text(getattr(result, "observation", result)))]
