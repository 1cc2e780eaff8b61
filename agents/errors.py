"""What can go wrong on this side of the environment, one class per cause.

A failure of the surroundings inside an episode is none of these: ``rollout``
turns it into ``Episode.failure``.
"""

from __future__ import annotations

from turntree.envs import errors as envs_errors


class AgentError(Exception):
    """Base of the errors of ``turntree.agents``; its message says what to do."""


class UsageError(AgentError):
    """The words of a command do not fit together."""


class RenderError(AgentError):
    """The tokenizer's chat template cannot say what it was given."""


class RecordError(AgentError):
    """A recorded episode cannot be read."""


class EngineAborted(AgentError):
    """The engine gave a request up."""


class EngineLost(AgentError, RuntimeError):
    """The process that ran the engine is gone, and with it the turns that it was asked for."""


class EngineFailed(AgentError, RuntimeError):
    """The engine raised; the message says what, in one line."""


class MissingExtra(AgentError, envs_errors.MissingExtra):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs packages that are missing here; run: pip install "turntree[{extra}]"')
