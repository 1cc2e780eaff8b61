"""Errors of ``turntree.agents``, one class per cause.

A failure of the infrastructure inside an episode is none of these: ``rollout`` turns it into
``Episode.failure``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        super().__init__(f"{what} needs packages that are missing here; run: {envs_errors.install_command(extra)}")


@contextmanager
def needed_packages(extra: str) -> Iterator[None]:
    """Around what imports them in a script: if one is missing, it ends with the line that a command has.

    Raises:
        SystemExit: If a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "turntree":
            raise
        line = MissingExtra(f"this script ({error.name})", extra) if error.name else error  # which says it itself
        raise SystemExit(f"turntree: {line}") from error
