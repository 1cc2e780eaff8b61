"""The key of a turn.

``DialogueState`` is the exact token ids up to the policy's next token, hashed,
with what is known of how the dialogue got there. It is opaque to the store but
for its ladder: the keys under which earlier turns may be found, nearest first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass


def _digest(*parts: bytes) -> int:
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return int.from_bytes(h.digest(), "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueState:
    """Where in which dialogue the policy speaks next."""

    exact: int
    """64-bit hash of the token ids up to the policy's next token."""
    task: str = ""
    """Task id; empty where unknown."""
    tools: str = ""
    """Tool-call history as text, observations left out; empty at the first turn."""
    env: str = ""
    """Environment id; empty where unknown."""

    @classmethod
    def from_tokens(cls, prompt_ids: Iterable[int], *, task: str = "", tools: str = "", env: str = "") -> DialogueState:
        """Key the state after ``prompt_ids`` (token ids, shape (prompt,))."""
        return cls(exact=_digest(array("q", prompt_ids).tobytes()), task=task, tools=tools, env=env)

    def ladder(self) -> tuple[int, ...]:
        """Keys from the exact state to the widest that is known: the state itself, the same task
        and tool history, the same task, the environment."""
        rungs = [self.exact]
        env = self.env.encode()
        if self.task:
            rungs.append(_digest(b"tools", env, self.task.encode(), self.tools.encode()))
            rungs.append(_digest(b"task", env, self.task.encode()))
        if self.env:
            rungs.append(_digest(b"env", env))
        return tuple(rungs)
