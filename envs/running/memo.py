"""A cache of tool results.

A call of a tool declared deterministic is answered from the cache if the
same call was made before at the same point: the same kind of environment, the
same task, and the same earlier tool calls and answers of the policy, in the
same order. Sibling rollouts and later epochs of a task reach such points
repeatedly.

Invariant: no other tool is ever answered from the cache. ``@tool(deterministic=True)``
is the author's assertion that the result depends on nothing else (no clock, no
network, no random numbers, not on ``reset``'s seed) and that the tool changes
nothing: a call answered from the cache is not executed.

Off unless an environment is given a ``ResultMemo``. Errors are not cached.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict

from turntree.envs.message import ToolCall
from turntree.envs.task import Task


class ResultMemo:
    """Results by the history that led to them. Environments with the same arguments may share one, in any thread.

    Args:
        max_results: Most results kept; the least recently used go first.

    Example:
        >>> memo = ResultMemo(2)
        >>> memo.put("point", "42")
        >>> memo.get("point"), memo.get("elsewhere")
        ('42', None)
    """

    def __init__(self, max_results: int) -> None:
        if max_results < 1:
            raise ValueError(f"a memo keeps at least one result, got max_results={max_results}")
        self._max = max_results
        self._lock = threading.Lock()
        self._results: OrderedDict[str, str] = OrderedDict()

    def get(self, point: str) -> str | None:
        """The result cached at ``point``, or ``None``."""
        with self._lock:
            result = self._results.get(point)
            if result is not None:
                self._results.move_to_end(point)
            return result

    def put(self, point: str, result: str) -> None:
        """Cache ``result`` at ``point``."""
        with self._lock:
            self._results[point] = result
            self._results.move_to_end(point)
            while len(self._results) > self._max:
                self._results.popitem(last=False)


def beginning(kind: str, task: Task) -> str:
    """The history of an episode at its beginning: a digest."""
    return _digest(kind, task.id, task.prompt, task.answer, repr(sorted(task.metadata.items())))


def after_call(history: str, call: ToolCall) -> str:
    """The history after ``call``; also the name of the point at which it is made."""
    return _digest(history, "call", call.name, json.dumps(call.arguments, sort_keys=True, default=repr))


def after_words(history: str, text: str) -> str:
    """The history after the policy's turn ``text`` and the environment's own answer."""
    return _digest(history, "words", text)


def _digest(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
