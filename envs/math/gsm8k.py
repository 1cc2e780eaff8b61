from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.data.rows import FileRows, HubRows, Row, no_rows
from turntree.envs.env import Env
from turntree.envs.errors import DataError
from turntree.envs.math.calculator import calculator
from turntree.envs.math.sets import find_set
from turntree.envs.math.tasks import repeats
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.verdict import score_final_answer
from turntree.rewards import final_answer, parse_number


class GSM8K(Env):
    """Solve grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168) with a calculator.

    The first turn that calls no tool ends the episode; the reward is 1 if it contains ``#### x`` with the right number,
    else 0. Rows need a ``question`` and an ``answer`` that is a number or ends with ``#### x``; an ``id`` is kept.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    describes_tools = True
    tools = (calculator,)
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"_tasks", "num_tasks"}

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        split: str = "test",
        subset: str | None = "main",
        without: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Read the problems; every row is checked here.

        Args:
            data: A ``.jsonl`` or ``.parquet`` file, a folder with such a file per split, or a Hugging Face data set
                id; ``None`` takes ``$TURNTREE_DATA/data/gsm8k`` if it exists, else the published set from the hub.
            split: Split of the folder or the data set. Part of the task id of a row that has no ``id``.
            subset: Configuration name on the Hugging Face hub.
            without: Names of evaluation sets (``any`` for all). Rows marked as repeating their questions are left out.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or a row malformed; the message names file and line.
            MissingExtra: If a library that reads ``data`` is not installed.
        """
        super().__init__(**kwargs)
        self._tasks = _read_tasks(find_set("gsm8k").rows(data, split, subset), split, tuple(without))
        self.num_tasks = len(self._tasks)

    def default_system_prompt(self) -> str:
        call = self.parser.format_call(ToolCall(name="calculator", arguments={"expression": "(16-3-4)*2"}))
        return (
            "Solve the problem step by step. You may use the calculator; call it like this and wait for "
            f"the result:\n{call}\n"
            "End your last message with the answer, a plain number, on a line of its own: #### x"
        )

    def task(self, index: int) -> Task:
        return self._tasks[index]

    def reply(self, message: Message) -> Reply:
        return score_final_answer(message.content, self.current_task.answer)


@lru_cache(maxsize=8)
def _read_tasks(rows: FileRows | HubRows, split: str, without: tuple[str, ...]) -> tuple[Task, ...]:
    tasks = tuple(
        _read_task(row, f"gsm8k/{split}/{index}") for index, row in enumerate(rows.read()) if not repeats(row, without)
    )
    if not tasks:
        raise no_rows(rows, {"question": "Two and two?", "answer": "It is 2+2=4. #### 4"})
    return tasks


def _read_task(row: Row, default_id: str) -> Task:
    question, text = row.text("question"), row.text("answer")
    answer = final_answer(text) if "####" in text else text.strip()
    if answer is None or parse_number(answer) is None:
        raise DataError(f"{row.where}: 'answer' must end with '#### NUMBER' or be a number, got {text!r:.200}")
    return Task(
        id=row.text("id") if row.fields.get("id") else default_id, prompt=question, answer=answer, data_source="gsm8k"
    )
