"""The input of a reward function: text and answers, without environments.

Invariant: ``turns`` holds the policy's own text only. Callers that fill a sample
leave out the text of tools, users and the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One attempt of the policy at one task."""

    turns: tuple[str, ...]
    """The policy's own turns, oldest first, shape (turns,)."""
    gold: str = ""
    """The right answer; empty where the task has none."""
    question: str = ""
    """The question asked of the policy; an answer that repeats it is wrong. Empty if it is not known."""
    data_source: str = ""
    """Data set of the task; selects the answer format of the comparison."""
    task_id: str = ""
    """Samples with the same id are attempts at the same task."""
    tool_calls: int = 0
    """Tool calls that the policy made."""
    tool_errors: int = 0
    """Tool calls that failed by the policy's own fault."""
    truncated: bool = False
    """Whether a limit ended the attempt."""
    answered: bool = True
    """Whether the last turn may hold the answer; ``False`` if it called a tool, whose arguments are no answer."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Other values that the task's rewards need, JSON values."""

    @property
    def answer_text(self) -> str:
        """The last turn, which is searched for the answer; empty if the policy gave none."""
        return self.turns[-1] if self.turns and self.answered else ""
