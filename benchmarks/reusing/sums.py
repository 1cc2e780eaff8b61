"""An environment that a small chat model sometimes gets right, so that there is something to learn from."""

from __future__ import annotations

import re

from turntree.envs import Env, Message, Reply, Role, Task


class Sums(Env):
    """A sum of two small numbers, asked twice at most: reward 1 for a right first answer, 0.5 for a second one."""

    def task(self, index: int) -> Task:
        a, b = 1 + index % 7, 1 + index * 3 % 8
        return Task(id=f"sums/{a}+{b}", prompt=f"What is {a} + {b}?", answer=str(a + b))

    def reply(self, message: Message) -> Reply:
        numbers = re.findall(r"\d+", message.content)
        right = bool(numbers) and numbers[-1] == self.current_task.answer
        first = sum(said.role is Role.ASSISTANT for said in self.messages) == 1
        if right or not first:
            return Reply(reward=float(right) * (1.0 if first else 0.5), done=True)
        return Reply(messages=(Message(role="user", content=f"That is wrong. {self.current_task.prompt}"),))
