"""The input of a reward function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One attempt of the policy at one task; text of tools, users or the environment is not included."""

    turns: tuple[str, ...]  #: the policy's own turns, oldest first, shape (turns,)
    gold: str = ""  #: the right answer; empty if the task has none
    #: the question given to the policy, empty if unknown; an answer that repeats the question is wrong
    question: str = ""
    data_source: str = ""  #: name of the data set; selects the answer format
    task_id: str = ""  #: samples with equal ids are attempts at one task
    tool_calls: int = 0  #: number of tool calls
    tool_errors: int = 0  #: number of tool calls that failed because of the policy
    truncated: bool = False  #: whether a limit ended the attempt
    answered: bool = True  #: whether the last turn is final and may hold the answer; ``False`` if it called a tool
    metadata: Mapping[str, Any] = field(default_factory=dict)  #: further inputs of the task's rewards, JSON values

    @property
    def answer_text(self) -> str:
        """The last turn, in which the answer is searched; empty if the policy gave none."""
        return self.turns[-1] if self.turns and self.answered else ""
