"""Errors of ``turntree.agents``, one class per cause.

A failure of the infrastructure inside an episode is none of these: ``rollout`` turns it into
``Episode.failure``.
"""

from __future__ import annotations

from turntree.envs import errors as envs_errors


class AgentError(Exception):
    """Base of the errors of ``turntree.agents``; its message says what to do."""


class UsageError(AgentError):
    """The arguments of a command do not fit together."""


class RenderError(AgentError):
    """The tokenizer's chat template cannot render what it was given."""


class RecordError(AgentError):
    """A recorded episode cannot be read."""


class EngineAborted(AgentError):
    """The engine gave a request up."""


class EngineLost(AgentError, RuntimeError):
    """The process that ran the engine has ended, and its running requests are lost."""


class EngineFailed(AgentError, RuntimeError):
    """The engine raised; the message states the error in one line."""


class MissingExtra(AgentError, envs_errors.MissingExtra):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs packages that are missing here; run: " + envs_errors.pip_install(f'"turntree[{extra}]"')
        )
