from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


def _digest(*parts: bytes) -> int:
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))  # lengths keep ("ab", "c") and ("a", "bc") apart
        h.update(part)
    return int.from_bytes(h.digest(), "little") or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueState:
    """The position in a dialogue at which the policy generates next; turns are stored under this key."""

    exact: int  #: 64-bit hash of all token ids before the policy's next token
    task: str = ""  #: task id; empty if unknown
    tools: str = ""  #: tool-call history as text without observations; empty at the first turn
    env: str = ""  #: environment id; empty if unknown

    @classmethod
    def from_tokens(cls, prompt_ids: Iterable[int], *, task: str = "", tools: str = "", env: str = "") -> DialogueState:
        """Return the state after ``prompt_ids`` (token ids, shape (prompt,))."""
        return cls(exact=_digest(array("q", prompt_ids).tobytes()), task=task, tools=tools, env=env)

    def backoff_states(self) -> tuple[int, int, int, int]:
        """Return the keys under which earlier turns may be found, most specific first.

        The keys stand for: this exact state; its task and tool history; its task; its environment. 0 is never a key.
        Without a task, the second and third key equal the first. Turns without an environment share one key.
        """
        return _backoff_states(self.exact or 1, self.tools, self.task, self.env)


@lru_cache(maxsize=1 << 16)
def _backoff_states(exact: int, tools: str, task: str, env: str) -> tuple[int, int, int, int]:
    environment = env.encode()
    of_env = _digest(b"env", environment)
    if not task:
        return exact, exact, exact, of_env
    of_task = _digest(b"task", environment, task.encode())
    return exact, _digest(b"tools", environment, task.encode(), tools.encode()), of_task, of_env
