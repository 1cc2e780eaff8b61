"""Speculative tool calls: calls that run before the policy has finished the turn that is likely to make them.

A result is used once, by the first step whose turn makes the same call. Invariant: only tools declared ``pure`` are
called speculatively, because a call of a pure tool has no effect if the policy never makes it.
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
    def __init__(self, run: Callable[[], str]) -> None:
        self._run = run
        self._future: Future[str] = Future()
        # Times on the monotonic clock: submission, start in a thread, end, and when the step used it (None: never).
        self.begun = self.ran = self.ended = monotonic()
        self.used_at: float | None = None

    def __call__(self) -> None:
        self.ran = monotonic()
        if not self._future.set_running_or_notify_cancel():
            return  # cancelled: the policy made the call before a thread was free
        try:
            result = contain(self._run)
        except Exception as error:  # raised by result()
            self.ended = monotonic()
            self._future.set_exception(error)
        else:
            self.ended = monotonic()
            self._future.set_result(result)

    def forget(self) -> bool:
        """Cancel the call if it has not started; return whether it was cancelled."""
        return self._future.cancel()

    def result(self, seconds: float | None = None) -> str:
        """Return the result, once the policy has made the call.

        Wait if the call is running. Run the call in this thread if it has not started, has failed or is late.

        Args:
            seconds: Deadline of the call, counted from its own start, so that an early start gives no extra time.
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
        # A failure may come from running speculatively, not from the tool, so run the call again.
        if late or not isinstance(error, ToolError | None):
            return self._run()
        self.used_at = wanted
        return self._future.result()


class PureCalls:
    """The speculative calls of one environment."""

    def __init__(self) -> None:
        self._calls: dict[str, PureCall] = {}
        self.seconds: float | None = None  # deadline of a call

    def add(self, call: ToolCall, run: Callable[[], str]) -> PureCall | None:
        """Register a speculative call, which the caller must run; return ``None`` if it is already registered."""
        key = _key(call)
        if key in self._calls:
            return None
        self._calls[key] = PureCall(run)
        return self._calls[key]

    def result(self, call: ToolCall, run: Callable[[], str]) -> str:
        pure_call = self._calls.get(_key(call))
        return run() if pure_call is None else pure_call.result(self.seconds)

    def close_step(self) -> None:
        """Forget the calls whose results this step has used."""
        self._calls = {key: call for key, call in self._calls.items() if call.used_at is None}


def _key(call: ToolCall) -> str:
    return json.dumps([call.name, call.arguments])
