from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, Role
from turntree.envs.task import Task
from turntree.envs.verdict import visible

_INTEGER = re.compile(r"(?<![\d.])-?\d{1,12}(?![\d.]*\d)")


class NumberGuessing(Env):
    """Find a secret number. A turn's last integer is the guess; the environment answers "higher" or "lower".

    The number of guesses is limited to those that halving the range (binary search) needs, plus ``spare``. A turn
    without a number uses up a guess. The reward is 1 if the number is found, else 0.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    default_limits = Limits(max_turns=None)

    def __init__(self, *, max_number: int = 100, spare: int = 1, split: str = "train", **kwargs: Any) -> None:
        """Choose the range.

        Args:
            max_number: The secret lies in 1..max_number.
            spare: Number of guesses beyond those that halving the range needs.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If the range is empty.
        """
        super().__init__(**kwargs)
        if max_number < 1 or spare < 0:
            raise ValueError(f"expected max_number >= 1 and spare >= 0, got {max_number} and {spare}")
        self.max_number = max_number
        self.guesses = max_number.bit_length() + spare
        self.split = split
        self.guess = 0

    def default_system_prompt(self) -> str:
        return (
            f"I think of a whole number from 1 to {self.max_number}. Guess it in at most {self.guesses} turns: "
            "the last number of each of your messages is your guess, and I say whether mine is higher or lower."
        )

    def task(self, index: int) -> Task:
        name = f"{self.max_number}/{self.split}/{index}"
        secret = random.Random(f"turntree/guessing/{name}").randint(1, self.max_number)
        return Task(
            id=f"guessing/{name}", prompt="What is your first guess?", answer=str(secret), data_source="guessing"
        )

    def solution(self) -> Sequence[str]:
        return [self.current_task.answer]

    def start(self, task: Task) -> Sequence[Message]:
        self.guess = 0
        return super().start(task)

    def reply(self, message: Message) -> Reply:
        self.guess += 1
        secret = int(self.current_task.answer)
        found = _INTEGER.findall(visible(message.content))
        right = bool(found) and int(found[-1]) == secret
        if right or self.guess == self.guesses:
            return Reply(
                reward=float(right), done=True, rewards={"correct": float(right), "guesses": float(self.guess)}
            )
        if not found:
            hint = "I see no number"
        else:
            hint = f"My number is {'higher' if secret > int(found[-1]) else 'lower'} than {found[-1]}"
        return Reply(messages=[Message(role=Role.USER, content=f"{hint}. Guesses left: {self.guesses - self.guess}.")])
