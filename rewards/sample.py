"""What a reward function is given: text and answers, nothing of environments.

Invariant: ``turns`` holds the policy's own words only. Whoever fills a sample
leaves out what tools, users and the environment said.
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
    """What the policy was asked; an answer that gives it back is wrong. Empty where it is not known."""
    data_source: str = ""
    """Data set of the task; names the contract of the comparison."""
    task_id: str = ""
    """Samples with the same id are attempts at the same task."""
    tool_calls: int = 0
    """Tool calls that the policy made."""
    tool_errors: int = 0
    """Tool calls that failed by the policy's own fault."""
    truncated: bool = False
    """Whether a limit ended the attempt."""
    answered: bool = True
    """Whether the last turn may hold the answer; ``False`` where it called a tool, so that no argument is one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that the task's rewards need, JSON values."""

    @property
    def answer_text(self) -> str:
        """The last turn, where the answer is looked for; empty where the policy gave none."""
        return self.turns[-1] if self.turns and self.answered else ""
