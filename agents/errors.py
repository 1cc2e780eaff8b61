from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from turntree.envs import errors as envs_errors

#: errors of ``flock`` on a network file system that is mounted without locks
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
_EXPLANATIONS = {
    errno.ENOENT: "{name} does not exist; check the path",
    errno.ENOTDIR: "a part of {name} is a file, not a folder; choose another path",
    errno.EISDIR: "{name} is a folder, expected a file; name a file in it",
    errno.EEXIST: "{name} exists already and is not a folder; choose another path",
    errno.EACCES: "permission denied for {name}; change its permissions or choose another path",
    errno.EPERM: "permission denied for {name}; change its permissions or choose another path",
    errno.EROFS: "{name} cannot be written: the file system is read-only; choose another path",
    errno.ENOSPC: "no space left for {name}; free some space or choose another path",
    errno.EDQUOT: "disk quota exceeded for {name}; free some space or choose another path",
    errno.EADDRINUSE: "the port is in use; choose another --port, or 0 for a free one",
    errno.EFBIG: "{name} exceeds the file size limit; raise the limit (ulimit -f) or choose another path",
}


def explain_os_error(error: OSError) -> str:
    """Return one line with the file and, if known, a fix.

    >>> explain_os_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "rows.jsonl"))
    "'rows.jsonl' does not exist; check the path"
    >>> explain_os_error(OSError("the reader gives the reason"))
    'the reader gives the reason'
    """
    words = _EXPLANATIONS.get(error.errno or 0)
    if words is None:
        return " ".join(str(error).split()) or type(error).__name__
    name = error.filename2 or error.filename
    return words.format(name="the output file" if name is None else repr(str(name)))


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
        super().__init__(f"{what} needs packages that are not installed; run: {envs_errors.install_command(extra)}")


@contextmanager
def needed_packages(extra: str) -> Iterator[None]:
    """Exit with one line that names the extra to install if an import in the block fails.

    Raises:
        SystemExit: If a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        # If a module of turntree cannot be imported, turntree has a bug; keep the traceback.
        if (error.name or "").partition(".")[0] == "turntree":
            raise
        # If the error does not name a module, print its own message.
        line = MissingExtra(f"this script ({error.name})", extra) if error.name else error
        raise SystemExit(f"turntree: {line}") from error
