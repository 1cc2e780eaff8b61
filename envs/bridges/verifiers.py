"""Task sets of the verifiers library that need no tools: a prompt, one answer, the task's own score."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.message import Message, Role
from turntree.envs.reply import Reply
from turntree.envs.task import Task


class Verifiers(Env):
    """One task of a verifiers ``Taskset`` an episode; the first turn that calls no tool answers it."""

    static_attributes = Env.static_attributes | {"_rows", "_score", "num_tasks", "_name"}

    def __init__(
        self,
        taskset: Any,
        *,
        score: Callable[[Any, str], Any],
        name: str = "verifiers",
        max_tasks: int = 10_000,
        **kwargs: Any,
    ) -> None:
        """Read the tasks.

        Args:
            taskset: Iterable of tasks with ``data`` (a prompt, text or messages).
            score: Function of the task and the answer that returns the reward or a coroutine of it.
            name: Prefix of task ids.
            max_tasks: Most tasks read; task sets may be endless.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self._rows = list(itertools.islice(taskset, max_tasks))
        self._score, self._name = score, name
        self.num_tasks = len(self._rows)

    def task(self, index: int) -> Task:
        """The task at this index."""
        prompt = self._rows[index].data.prompt
        text = prompt if isinstance(prompt, str) else "\n\n".join(str(_part(m, "content")) for m in prompt)
        return Task(id=f"{self._name}/{index}", prompt=text, data_source=self._name, metadata={"index": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Return the prompt as messages."""
        prompt = self._rows[task.metadata["index"]].data.prompt
        if isinstance(prompt, str):
            return [Message(role=Role.USER, content=prompt)]
        return [Message(role=Role(_part(m, "role")), content=_part(m, "content")) for m in prompt]

    def reply(self, message: Message) -> Reply:
        """Let the task score the answer."""
        score = self._score(self._rows[self.current_task.metadata["index"]], message.content)
        reward = float(asyncio.run(_awaited(score)) if hasattr(score, "__await__") else score)
        return Reply(reward=reward, done=True, rewards={"verifiers": reward})


async def _awaited(score: Any) -> Any:
    return await score


def _part(message: Any, name: str) -> Any:
    return message[name] if isinstance(message, dict) else getattr(message, name)
