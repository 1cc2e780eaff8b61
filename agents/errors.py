from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turntree.envs import errors as envs_errors


class AgentError(Exception):
    """Base class of the errors of ``turntree.agents``; each message says how to fix the problem."""


class UsageError(AgentError):
    """The arguments of a command contradict each other or cannot be used."""


class RenderError(AgentError):
    """The tokenizer's chat template cannot render its input."""


class RecordError(AgentError):
    """A recorded episode cannot be read."""


class EngineAborted(AgentError):
    """The engine aborted a request."""


class EngineLost(AgentError, RuntimeError):
    """The engine's process has exited, and its running requests have failed."""


class EngineFailed(AgentError, RuntimeError):
    """The engine raised an exception; the message is one line."""


class MissingExtra(AgentError, envs_errors.MissingExtra):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are missing here; run: {envs_errors.install_command(extra)}")


@contextmanager
def needed_packages(extra: str) -> Iterator[None]:
    """Exit with one line that names the extra to install if an import in the block fails.

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
