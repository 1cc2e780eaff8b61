"""A cache of tool results. It helps because rollouts of one task often repeat each other's first calls.

A point is a call together with its history: the class of the environment, the task, and all earlier tool calls and
answers of the policy. A deterministic tool is not run again at a point whose result is cached. Results of tools that
are not deterministic are never cached, nor are errors.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict

from turntree.envs.message import ToolCall
from turntree.envs.task import Task


class ResultMemo:
    """Tool results, by the history that led to them; only for tools with ``@tool(deterministic=True)``.

    Environments with the same arguments may share a ``ResultMemo``, in any thread. Environments without a
    ``ResultMemo`` cache nothing.

    Args:
        max_results: Maximum number of results; the least recently used are evicted.

    Example:
        >>> memo = ResultMemo(2)
        >>> memo.put("point", "42")
        >>> memo.get("point"), memo.get("elsewhere")
        ('42', None)
    """

    def __init__(self, max_results: int) -> None:
        if max_results < 1:
            raise ValueError(f"max_results must be at least 1, got {max_results}")
        self._max = max_results
        self._lock = threading.Lock()
        self._results: OrderedDict[str, str] = OrderedDict()

    def get(self, point: str) -> str | None:
        """Return the result cached at ``point``, or ``None``."""
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
    """Return the digest of the history of an episode that has just begun."""
    return _digest(kind, task.id, task.prompt, task.answer, repr(sorted(task.metadata.items())))


def after_call(history: str, call: ToolCall) -> str:
    """Return the digest of the history including ``call``; it is the key under which the call's result is cached."""
    return _digest(history, "call", call.name, json.dumps(call.arguments, sort_keys=True, default=repr))


def after_words(history: str, text: str) -> str:
    """Return the digest of the history including a turn that calls no tool."""
    return _digest(history, "words", text)


def _digest(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        # The length of each part is hashed too, so that ("ab", "c") and ("a", "bc") give different digests.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
