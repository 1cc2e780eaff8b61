"""The progress of an episode, as the environment counts it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turntree.envs.failure import FailureKind
from turntree.envs.limits import Limits
from turntree.envs.message import Message, ToolCall
from turntree.envs.running.containment import contain
from turntree.envs.running.stopwatch import Stopwatch
from turntree.envs.task import Task
from turntree.envs.tools.toolset import Toolset

logger = logging.getLogger(__name__)


class EnvStop(StrEnum):
    """Why an environment ended the episode, as given in ``info["stop_reason"]``; false while it runs."""

    RUNNING = ""
    DONE = "done"
    """The task ended it."""
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    MAX_ERRORS = "max_errors"
    FAILURE = "failure"
    """A tool or the environment raised: no verdict on the policy."""

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
    """The running episode: all state that the base class keeps between steps."""

    task: Task
    """The task of the episode."""
    messages: list[Message] = field(default_factory=list)
    kept: list[Message] = field(default_factory=list)
    """What ``Env.compact`` last put in the place of the messages before ``since``."""
    since: int = 0
    """Number of messages that the policy sees no more, as they were."""
    turn: int = 0
    """Turns of the policy so far."""
    tool_calls: int = 0
    """Tool calls run so far."""
    errors: int = 0
    """Turns in a row whose calls all failed or could not be read."""
    toolsets: list[Toolset] = field(default_factory=list)
    """This episode's own toolsets."""
    tool_state: dict[str, Any] = field(default_factory=dict)
    """Values that tools keep in ``Context.state``."""
    clock: Stopwatch | None = None
    """Runs where seconds are limited."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Named reward components, summed over the episode."""
    stop: EnvStop = EnvStop.RUNNING
    """Why it ended, if it has."""
    failure: str = ""
    """What failed, in one line."""
    failure_kind: FailureKind = FailureKind.ENVIRONMENT
    """The part that failed; only where ``failure`` says something."""
    history: str = ""
    """Digest of all turns and calls so far (see ``memo``); empty where no results are cached."""
    doing: str = ""
    """The operation running now, to name it if it fails."""

    @property
    def seen(self) -> tuple[Message, ...]:
        """What the policy sees of the dialogue."""
        return (*self.kept, *self.messages[self.since :])

    def allowed(self, calls: Sequence[ToolCall], limits: Limits) -> Sequence[ToolCall]:
        """The first of ``calls``, as many as may still be made."""
        most = limits.max_tool_calls
        return calls if most is None else calls[: most - self.tool_calls]

    def seconds_left(self, limits: Limits) -> float | None:
        """Seconds that the episode may still take; ``None`` without a bound."""
        if limits.max_seconds is None or self.clock is None:
            return None
        return max(0.0, limits.max_seconds - self.clock.seconds)

    def note_end(self, limits: Limits, *, done: bool) -> None:
        """Note why the episode ends with this turn, if it does; ``done`` is the task's own decision."""
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
        """Release what the toolsets hold; may be called again."""
        for toolset in self.toolsets:
            try:
                contain(toolset.close)
            except Exception:  # the episode is over and can no longer fail
                logger.warning("closing %s failed", type(toolset).__name__, exc_info=True)
