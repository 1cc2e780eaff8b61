from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from turntree.envs.env import Env
from turntree.envs.errors import ToolError
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.tools.tool import tool

_WORDS = ("apple", "basil", "cedar", "daisy", "elder", "fig", "grape", "hazel", "iris", "juniper", "kale", "lemon")


class KeyValue(Env):
    """Read and change numbers in a store; the first turn without a call ends the episode.

    The prompt lists operations (copy, add, swap, delete) on keys; the policy must look up the numbers. The reward is 1
    if the store at the end equals the expected store, else 0.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    default_limits = Limits(max_turns=24)
    example_call = ToolCall(name="get", arguments={"key": "apple"})

    def __init__(
        self, *, keys: int = 5, min_operations: int = 1, max_operations: int = 3, split: str = "train", **kwargs: Any
    ) -> None:
        """Choose the tasks.

        Args:
            keys: Keys in the store at first, 3 to 12.
            min_operations: Least number of operations, from 1.
            max_operations: Greatest number of operations.
            split: Part of every task's id and seed.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If an argument is out of range.
        """
        super().__init__(**kwargs)
        if not 3 <= keys <= len(_WORDS):
            raise ValueError(f"keys must lie in 3..{len(_WORDS)}, got {keys}")
        if not 1 <= min_operations <= max_operations:
            raise ValueError(
                f"expected 1 <= min_operations <= max_operations, got {min_operations} and {max_operations}"
            )
        self.keys = keys
        self.min_operations = min_operations
        self.max_operations = max_operations
        self.split = split
        self.store: dict[str, int] = {}

    def default_system_prompt(self) -> str:
        return (
            "You keep a store of whole numbers. Do the operations in order with the tools, and wait for each result. "
            "When all is done, say so without a call."
        )

    def task(self, index: int) -> Task:
        name = f"{self.keys}/{self.min_operations}-{self.max_operations}/{self.split}/{index}"
        rng = random.Random(f"turntree/key_value/{name}")
        store = {key: rng.randint(1, 99) for key in rng.sample(_WORDS, self.keys)}
        count = rng.randint(self.min_operations, self.max_operations)
        expected = store
        while expected == store:  # operations may cancel out; then doing nothing would win, so draw again
            expected = dict(store)
            lines = [_operation(rng, expected) for _ in range(count)]
        prompt = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
        return Task(
            id=f"key_value/{name}",
            prompt=f"The store has the keys {', '.join(store)}.\n{prompt}",
            data_source="key_value",
            metadata={"store": store, "expected": expected, "operations": count},
        )

    def solution(self) -> Sequence[str]:
        given, expected = self.current_task.metadata["store"], self.current_task.metadata["expected"]
        calls = [ToolCall(name="delete", arguments={"key": key}) for key in given if key not in expected]
        calls += [ToolCall(name="set", arguments={"key": key, "value": number}) for key, number in expected.items()]
        return [*map(self.parser.format_call, calls), "Done."]

    def start(self, task: Task) -> Sequence[Message]:
        self.store = dict(task.metadata["store"])
        return super().start(task)

    def reply(self, message: Message) -> Reply:
        right = float(self.store == self.current_task.metadata["expected"])
        return Reply(reward=right, done=True, rewards={"correct": right})

    @tool
    def get(self, key: str) -> int:
        """Read a number.

        Args:
            key: Its key
        """
        self._require(key)
        return self.store[key]

    @tool
    def set(self, key: str, value: int) -> str:
        """Write a number, under an old key or a new one.

        Args:
            key: Its key
            value: The number
        """
        self.store[key] = value
        return "ok"

    @tool
    def delete(self, key: str) -> str:
        """Remove a key.

        Args:
            key: The key
        """
        self._require(key)
        del self.store[key]
        return "ok"

    @tool
    def list_keys(self) -> list[str]:
        """List the keys."""
        return sorted(self.store)

    def _require(self, key: str) -> None:
        if key not in self.store:
            raise ToolError(f"there is no key {key!r}; the keys are: {', '.join(sorted(self.store)) or 'none'}")


def _operation(rng: random.Random, store: dict[str, int]) -> str:
    # Returns the operation as text, and applies it to ``store``, the expected store, which keeps at least two keys.
    one, other = rng.sample(sorted(store), 2)
    kind = rng.choice(("copy", "add", "swap", "delete") if len(store) > 2 else ("copy", "add", "swap"))
    if kind == "copy":
        store[other] = store[one]
        return f"Copy the number of {one} to {other}."
    if kind == "add":
        store[other] += store[one]
        return f"Add the number of {one} to {other}."
    if kind == "swap":
        store[one], store[other] = store[other], store[one]
        return f"Swap the numbers of {one} and {other}."
    del store[one]
    return f"Delete {one}."
