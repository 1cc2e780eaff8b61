from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.env import Env
from turntree.envs.math.calculator import calculator
from turntree.envs.math.sets import find_set
from turntree.envs.math.tasks import between_levels, read_tasks
from turntree.envs.message import Message, Reply, Role, ToolCall
from turntree.envs.sandbox.python_tool import PythonTool
from turntree.envs.task import Task
from turntree.envs.verdict import grade_answer

_EXAMPLES = {"calculator": {"expression": "(16-3-4)*2"}, "python": {"code": "print(sum(range(10)))"}}
_GO_ON = r"I see neither a tool call nor an answer in \boxed{}. Call a tool, or end with your answer in \boxed{}."
TOOL_NAMES = tuple(_EXAMPLES)  #: names allowed in `use`


class Math(Env):
    r"""Solve problems; the answer is in the last ``\boxed{}`` of a turn that calls no tool.

    With ``attempts=1`` that turn ends the episode. With more attempts, the policy is told that an answer is wrong and
    may try again. The reward of a right answer is 1, times ``discount`` for each wrong attempt before it. With tools, a
    turn that neither calls a tool nor answers uses up no attempt, and the policy is told so. There, a turn counts as an
    answer only if it has a box, ``<answer>``, ``####`` or "the answer is", or consists of the answer alone. Without
    tools, the last number in the text also counts.
    """

    forkable = True
    describes_tools = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {
        *("_tasks", "num_tasks", "dataset", "attempts", "discount")
    }

    def __init__(
        self,
        *,
        dataset: str = "math500",
        data: str | Path | None = None,
        split: str | None = None,
        subset: str | None = None,
        attempts: int = 1,
        discount: float = 1.0,
        use: Sequence[str] = (),
        without: Sequence[str] = (),
        min_level: float | None = None,
        max_level: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the problems; every row is checked here.

        Args:
            dataset: Name of one of ``MATH_SETS``.
            data: A ``.jsonl`` or ``.parquet`` file, a folder with such a file per split, or a Hugging Face data set
                id; ``None`` takes ``$TURNTREE_DATA/data``, else the published set from the hub.
            split: Split; ``None`` takes the first split of the data set.
            subset: Configuration name of a data set id in ``data``.
            attempts: Answers that the policy may give.
            discount: Factor of the reward for each wrong attempt, in [0, 1].
            use: Tools of the policy: ``calculator``, ``python`` (in a sandbox, see ``PythonTool``).
            without: Names of evaluation sets (``any`` for all). Rows marked as repeating their questions are left out.
            min_level: Lowest ``level`` (or ``difficulty``) of the problems; ``None`` for no bound.
            max_level: Highest ``level`` (or ``difficulty``) of the problems; ``None`` for no bound.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If there is no data set of this name, a file is missing, or a row is malformed.
            MissingExtra: If a library that reads ``data`` is not installed.
            ValueError: If another argument is out of range.
        """
        super().__init__(**kwargs)
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {attempts}")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount must lie in [0, 1], got {discount}")
        unknown = [name for name in use if name not in TOOL_NAMES]
        if unknown:
            raise ValueError(f"use takes names of tools ({', '.join(TOOL_NAMES)}), got {unknown[0]!r}")
        self.dataset = find_set(dataset)
        self.attempts = attempts
        self.discount = discount
        self.tools = (calculator,) if "calculator" in use else ()
        self.toolsets = (PythonTool(),) if "python" in use else ()
        self.attempt = 0
        split = split or self.dataset.default_split
        tasks = read_tasks(dataset, self.dataset.rows(data, split, subset), split, tuple(without))
        self._tasks = between_levels(tasks, min_level, max_level)
        self.num_tasks = len(self._tasks)

    def default_system_prompt(self) -> str:
        lines = ["Solve the problem step by step."]
        for tool in self.offered_tools:
            call = self.parser.format_call(ToolCall(name=tool.name, arguments=_EXAMPLES[tool.name]))
            lines.append(f"You may use the tool {tool.name}; call it like this and wait for the result:\n{call}")
        what = "the letter of the right choice" if self.dataset.choices else "your final answer"
        lines.append(rf"End your last message with {what} in \boxed{{}}.")
        return "\n".join(lines)

    def task(self, index: int) -> Task:
        return self._tasks[index]

    def start(self, task: Task) -> Sequence[Message]:
        self.attempt = 0
        return super().start(task)

    def reply(self, message: Message) -> Reply:
        verdict = grade_answer(message.content, self.current_task, self.dataset.answer_format)
        if self.offered_tools and (verdict.answer is None or verdict.guessed):
            return Reply(messages=[Message(role=Role.USER, content=_GO_ON)])
        self.attempt += 1
        rewards = {"correct": float(bool(verdict.correct)), "attempts": 1.0}
        if verdict.correct:
            return Reply(reward=self.discount ** (self.attempt - 1), done=True, rewards=rewards)
        left = self.attempts - self.attempt
        if left == 0:
            return Reply(done=True, rewards=rewards)
        wrong = r"I see no answer in \boxed{}." if verdict.answer is None else "That is not right."
        again = f"{wrong} Look for the mistake and try again; attempts left: {left}."
        return Reply(messages=[Message(role=Role.USER, content=again)], rewards=rewards)
