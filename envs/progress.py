from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any

from turntree.envs.failure import FailureKind
from turntree.envs.limits import Limits
from turntree.envs.message import Message, ToolCall
from turntree.envs.running.containment import contain
from turntree.envs.task import Task
from turntree.envs.tools.toolset import Toolset

logger = logging.getLogger(__name__)


class Stopwatch:
    """Measures seconds since its creation. A pickle keeps the seconds so far; an unpickled copy counts on from them.

    >>> Stopwatch().seconds < 1
    True
    """

    __slots__ = ("_start",)

    def __init__(self) -> None:
        self._start = monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation, without the time between pickling and unpickling."""
        return monotonic() - self._start

    def __getstate__(self) -> float:
        return self.seconds

    def __setstate__(self, seconds: float) -> None:
        self._start = monotonic() - seconds


class EnvStop(StrEnum):
    """Reason why an environment ended the episode (``info["stop_reason"]``); falsy while the episode runs."""

    RUNNING = ""
    DONE = "done"  #: the task ended the episode
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    MAX_ERRORS = "max_errors"
    FAILURE = "failure"  #: a tool or the environment raised; the episode is not scored

    @property
    def terminated(self) -> bool:
        """Whether the task ended the episode."""
        return self == "done"

    @property
    def truncated(self) -> bool:
        """Whether a limit or a failure ended the episode."""
        return self not in ("", "done")


@dataclass(slots=True, kw_only=True)
class Progress:
    """All state that the base class keeps between the steps of an episode."""

    task: Task
    messages: list[Message] = field(default_factory=list)
    #: messages with which ``Env.compact`` replaced the first ``since`` messages
    kept: list[Message] = field(default_factory=list)
    since: int = 0  #: number of ``messages`` that ``kept`` replaces
    turn: int = 0  #: turns of the policy so far
    tool_calls: int = 0  #: tool calls run so far
    errors: int = 0  #: consecutive turns whose calls all failed or were malformed
    toolsets: list[Toolset] = field(default_factory=list)  #: this episode's own copies of the environment's toolsets
    tool_state: dict[str, Any] = field(default_factory=dict)  #: values that tools keep in ``Context.state``
    clock: Stopwatch | None = None  #: seconds since ``reset``; None if ``max_seconds`` is not set
    rewards: dict[str, float] = field(default_factory=dict)  #: named components, summed over the episode
    stop: EnvStop = EnvStop.RUNNING
    failure: str = ""  #: description of the failure in one line; empty if there is no failure
    failure_kind: FailureKind = FailureKind.ENVIRONMENT  #: valid only if ``failure`` is not empty
    history: str = ""  #: digest of all turns and calls so far (see ``memo``); empty if no results are cached
    doing: str = ""  #: the operation running now, to name it if it fails

    @property
    def seen(self) -> tuple[Message, ...]:
        """The messages that the policy sees."""
        return (*self.kept, *self.messages[self.since :])

    def allowed(self, calls: Sequence[ToolCall], limits: Limits) -> Sequence[ToolCall]:
        """Return the first calls of ``calls``, as many as ``max_tool_calls`` still allows."""
        most = limits.max_tool_calls
        return calls if most is None else calls[: most - self.tool_calls]

    def seconds_left(self, limits: Limits) -> float | None:
        """Return the seconds left for the episode; ``None`` without a limit."""
        if limits.max_seconds is None or self.clock is None:
            return None
        return max(0.0, limits.max_seconds - self.clock.seconds)

    def note_end(self, limits: Limits, *, done: bool) -> None:
        """Record why the episode ends with this turn, if it ends; ``done`` means that the task ended the episode."""
        if done:
            self.stop = EnvStop.DONE
        elif self.stop:
            return
        elif self.errors == limits.max_errors:
            self.stop = EnvStop.MAX_ERRORS
        elif self.turn == limits.max_turns:
            self.stop = EnvStop.MAX_TURNS
        elif self.seconds_left(limits) == 0:
            self.stop = EnvStop.MAX_SECONDS

    def close(self) -> None:
        """Close the toolsets; may be called again."""
        for toolset in self.toolsets:
            try:
                contain(toolset.close)
            except Exception:  # the episode is over and can no longer fail
                logger.warning("closing %s failed", type(toolset).__name__, exc_info=True)
