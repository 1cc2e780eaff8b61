"""Task sets of reasoning-gym, scored by their own checkers."""

from __future__ import annotations

from typing import Any

from turntree.envs.bridges.missing import library
from turntree.envs.env import Env
from turntree.envs.message import Message
from turntree.envs.reply import Reply
from turntree.envs.task import Task
from turntree.rewards import final_answer


class ReasoningGym(Env):
    """One question a task; the first turn that calls no tool answers it.

    The text after ``####`` is the answer, else the whole turn. The reward is the data set's score, 0 to 1.
    """

    static_attributes = Env.static_attributes | {"_dataset", "num_tasks", "_name"}

    def __init__(self, name: str, *, size: int = 1000, data_seed: int = 0, settings: Any = None, **kwargs: Any) -> None:
        """Make the data set.

        Args:
            name: For example ``chain_sum``.
            size: Number of tasks.
            data_seed: Seed of the tasks.
            settings: Further arguments of the data set, by name.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        gym = library("reasoning_gym", "reasoning-gym")
        self._name = name
        self._dataset = gym.create_dataset(name, size=size, seed=data_seed, **(settings or {}))
        self.num_tasks = size

    def default_system_prompt(self) -> str:
        """Explain the form of the answer."""
        return "Think step by step. End with the final answer on a line of its own: #### answer"

    def task(self, index: int) -> Task:
        """The question at this index of the data set."""
        entry = self._dataset[index]
        id = f"reasoning_gym/{self._name}/{self._dataset.seed}/{index}"
        answer = str(entry["answer"])
        return Task(id=id, prompt=entry["question"], answer=answer, data_source=self._name, metadata={"index": index})

    def reply(self, message: Message) -> Reply:
        """Let the data set score the answer."""
        entry = self._dataset[self.current_task.metadata["index"]]
        answer = final_answer(message.content) or message.content.strip()
        score = float(self._dataset.score_answer(answer, entry))
        return Reply(reward=score, done=True, rewards={"correct": score})
