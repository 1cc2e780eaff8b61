"""Calls of pure tools made before it is known that the policy makes them.

A result answers the very same call, byte for byte, of the first step of the environment that makes it, once. Invariant:
only tools declared ``pure`` get here, whose calls leave no trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from turntree.envs.errors import ToolError
from turntree.envs.message import ToolCall
from turntree.envs.running.containment import contain


class PureCall:
    """A call that may come."""

    def __init__(self, run: Callable[[], str]) -> None:
        self._run = run
        self._future: Future[str] = Future()
        self.begun = self.ran = self.ended = monotonic()
        """When it was asked to run ahead, when a thread began it, and when it ended, seconds."""
        self.used_at: float | None = None
        """When the step wanted its result, seconds; ``None`` if it did not."""

    def __call__(self) -> None:
        """Make it."""
        self.ran = monotonic()
        if not self._future.set_running_or_notify_cancel():
            return  # it came before a thread was free
        try:
            result = contain(self._run)
        except Exception as error:  # raised where the result is wanted
            self.ended = monotonic()
            self._future.set_exception(error)
        else:
            self.ended = monotonic()
            self._future.set_result(result)

    def forget(self) -> bool:
        """Whether it had not begun; then it never will."""
        return self._future.cancel()

    def result(self, seconds: float | None = None) -> str:
        """Its result, now that it has come; the caller makes it if the call has not begun, failed, or is late.

        Args:
            seconds: Deadline of a call. Made ahead it has no more time than otherwise, from its own begin on.
        """
        if self._future.cancel():
            return self._run()
        wanted = monotonic()
        left = None if seconds is None else max(0.0, self.ran + seconds - wanted)
        try:
            error = self._future.exception(left)
        except TimeoutError:
            return self._run()
        late = seconds is not None and self.ended - self.ran > seconds
        if late or not isinstance(error, ToolError | None):  # made again, it may succeed
            return self._run()
        self.used_at = wanted
        return self._future.result()


class PureCalls:
    """The calls of one environment that may come."""

    def __init__(self) -> None:
        self._calls: dict[str, PureCall] = {}
        self.seconds: float | None = None
        """Deadline of a call; ``None`` is none."""

    def add(self, call: ToolCall, run: Callable[[], str]) -> PureCall | None:
        """A call that may come, to be made by whoever asked for it; ``None`` if it was asked for before."""
        key = _key(call)
        if key in self._calls:
            return None
        made = self._calls[key] = PureCall(run)
        return made

    def result(self, call: ToolCall, run: Callable[[], str]) -> str:
        """The result of a call that has come."""
        made = self._calls.get(_key(call))
        return run() if made is None else made.result(self.seconds)

    def close_step(self) -> None:
        """Forget those that came."""
        self._calls = {key: call for key, call in self._calls.items() if call.used_at is None}


def _key(call: ToolCall) -> str:
    return json.dumps([call.name, call.arguments])
