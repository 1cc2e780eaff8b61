from __future__ import annotations

import json
from typing import Any

from turntree.envs.bridges.libraries import library
from turntree.envs.env import Env
from turntree.envs.errors import DataError, nearest_hint
from turntree.envs.message import Message, Reply
from turntree.envs.task import Task
from turntree.rewards import final_answer
from turntree.rewards.reading.thoughts import without_thoughts

#: Keys under which an entry may hold its gold answer; in the entry's metadata if several answers are right.
_GOLD = ("answer", "possible_answer", "example_answer", "example_correct_answer")


class ReasoningGym(Env):
    """Plays a reasoning-gym data set, one question per task; the first turn that calls no tool is the answer.

    The answer is the text after the last ``####``, which may have several lines, or else the whole turn. The reward is
    the data set's own score, 0 to 1; an answer that its checker cannot read is wrong.

    Not covered: several checkers evaluate the answer as Python or sympy, in this process (``string_insertion``,
    ``spiral_matrix``, ``binary_matrix``, ``n_queens``, ``countdown``, ``puzzle24``, integration, polynomials).
    """

    static_attributes = Env.static_attributes | {"_dataset", "num_tasks", "_name", "_last"}

    def __init__(self, name: str, *, size: int = 1000, data_seed: int = 0, settings: Any = None, **kwargs: Any) -> None:
        """Create the data set.

        Args:
            name: For example ``chain_sum``.
            settings: Further arguments of the data set.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If there is no such data set.
        """
        super().__init__(**kwargs)
        gym = library("reasoning_gym", "reasoning-gym")
        self._name = name
        known = list(library("reasoning_gym.factory", "reasoning-gym").DATASETS)
        if name not in known:
            raise DataError(f"reasoning_gym has no data set {name!r}; {nearest_hint(name, known, 'it has')}")
        self._dataset = gym.create_dataset(name, size=size, seed=data_seed, **(settings or {}))
        self.num_tasks = size
        self._last: tuple[int, Any] | None = None

    def default_system_prompt(self) -> str:
        return "Think step by step. End with the final answer on a line of its own: #### answer"

    def task(self, index: int) -> Task:
        entry = self._entry(index)
        id = f"reasoning_gym/{self._name}/{self._dataset.seed}/{index}"
        answer = _gold(entry)
        return Task(id=id, prompt=entry["question"], answer=answer, data_source=self._name, metadata={"index": index})

    def reply(self, message: Message) -> Reply:
        entry = self._entry(self.current_task.metadata["index"])
        score = max(self._score(answer, entry) for answer in _answer_candidates(message.content))
        return Reply(reward=score, done=True, rewards={"correct": score})

    def _entry(self, index: int) -> Any:
        # Some data sets take a second to generate an entry, so the episode's entry is cached.
        if self._last is None or self._last[0] != index:
            self._last = index, self._dataset[index]
        return self._last[1]

    def _score(self, answer: str, entry: Any) -> float:
        try:
            return float(self._dataset.score_answer(answer, entry))
        except (Exception, SystemExit):  # checkers do not validate answers: int("twelve"), {"a": 1}[0], eval("exit()")
            return 0.0


def _answer_candidates(text: str) -> list[str]:
    # The text after ####, and that text's first line without a full stop; the candidate with the better score counts.
    spoken = without_thoughts(text)[0]
    after = spoken.rpartition("####")[2].strip()
    line = final_answer(spoken)
    return [after] if line in (None, after) else [after, line]  # type: ignore[list-item]


def _gold(entry: Any) -> str:
    found = (entry.get(name, entry["metadata"].get(name)) for name in _GOLD)
    gold = next((answer for answer in found if answer is not None), "")
    return json.dumps(gold) if isinstance(gold, dict) else str(gold)
