"""Atomic file writes, one writer per path, and values as strict JSON.

Invariant: after any error the path still holds its old content and no temporary file is left. A path that is not a
regular file (``/dev/stdout``, a pipe) is written to directly. If the path is a symbolic link, its target is replaced.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from errno import EISDIR
from io import FileIO
from pathlib import Path
from typing import Any

from turntree.agents.errors import NO_LOCKS, UsageError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces ``path`` if the block ends without an error.

    Creates missing folders. The temporary file keeps the suffix of ``path``.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    through = is_special(path)
    target = path if through else path.resolve()
    folder = Path(tempfile.gettempdir()) if through else target.parent
    folder.mkdir(parents=True, exist_ok=True)
    # Next to the target, because a rename across file systems is not atomic.
    partial = folder / f".partial-{os.getpid()}-{path.name}"
    try:
        yield partial
        if through:
            with partial.open("rb") as content, path.open("wb") as device:
                shutil.copyfileobj(content, device)
        else:
            partial.replace(target)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def is_special(path: Path) -> bool:
    """Return whether ``path`` is a device, a pipe or a standard stream.

    >>> is_special(Path("/dev/null")), is_special(Path("/dev/stdout")), is_special(Path("no such file"))
    (True, True, False)
    """
    # A standard stream may be redirected to a regular file that other processes hold open.
    streams = ("/dev", "/proc")
    return str(path.absolute()).startswith(streams) or (path.exists() and not path.is_file() and not path.is_dir())


def write_whole(path: Path, content: str | bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def keep_apart(out: Path, read: Iterable[Any], *, folders: bool = True) -> None:
    """Refuse to write to ``out`` if it is one of the inputs, under any path or link.

    Args:
        read: Inputs: files, or folders (each file in them counts). Mappings and lists are searched for paths; values
            that name no existing file (a Hugging Face id, a number) are ignored.
        folders: Whether folders count.
    """
    status = _status(out)
    for name in read:
        if isinstance(name, Mapping | list | tuple):
            keep_apart(out, name.values() if isinstance(name, Mapping) else name, folders=folders)
            continue
        named_status = _status(name) if isinstance(name, str | Path) else None
        if named_status is None and not isinstance(name, Path):
            continue
        path, folder = Path(name).expanduser(), named_status is not None and stat.S_ISDIR(named_status.st_mode)
        if folder and not folders:
            continue
        same = not folder and out.resolve() == path.resolve()
        if status is not None and stat.S_ISREG(status.st_mode):
            inside = [_status(entry) for entry in path.iterdir()] if folder else [named_status]
            same |= any(entry is not None and os.path.samestat(status, entry) for entry in inside)
            same |= folder and out.resolve().is_relative_to(path.resolve())
        if same:
            raise UsageError(f"{out} is an input and would be overwritten; name another output file")


def _status(name: str | Path) -> os.stat_result | None:
    try:
        return Path(name).expanduser().stat()
    except (OSError, ValueError, RuntimeError):
        # No such file, or not a valid path.
        return None


def ensure_writable(path: Path) -> None:
    """Check that a file can be created at ``path`` before hours are spent on its content."""
    if path.exists():
        path.open("ab").close()
        return
    # A link may point to a file that does not exist yet.
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        probe.touch()
    finally:
        probe.unlink(missing_ok=True)


class OneWriter:
    """An exclusive lock for writing a file or folder, held until ``close`` or the end of the process.

    It is an ``flock`` on a hidden file next to the file, or in the folder. Child processes that inherit its descriptor
    hold the lock too. Between machines it works only if the file system's locks do.
    """

    def __init__(self, path: Path, *, inherited: float = 0.0, instead: str = "name another file") -> None:
        """Take the lock.

        Args:
            path: A file, whose folder is created, or an existing folder.
            inherited: Seconds to wait for child processes that still hold the lock of a process that has ended.
            instead: For the error message: what the user can do instead of waiting for the lock.

        Raises:
            UsageError: If another process holds the lock; the message names that process.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = path / ".lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
        until = time.monotonic() + inherited
        while (holder := self._take()) is not None:
            if time.monotonic() >= until or _is_running(holder):
                raise UsageError(f"{path} is being written by {holder}; wait for it, or {instead}")
            time.sleep(_POLL_SECONDS)
        if not _is_on_this_machine(earlier := self._holder()):
            logger.warning(
                "%s was being written by %s, which did not exit cleanly: check that it is gone", path, earlier
            )
        os.truncate(self.descriptor, 0)
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        # Overwrite the file in place, to keep the lock; the text tells other processes which process holds it.
        os.pwrite(self.descriptor, f"process {os.getpid()} on {socket.gethostname()} since {now}".encode(), 0)

    def _take(self) -> str | None:
        while True:
            self.descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                error = lock_file(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                os.close(self.descriptor)
                return holder or "another process"
            if error is not None:
                logger.warning(
                    "the file system of %s has no locks (%s), so a second process could write there",
                    self._lock_file.parent,
                    error.strerror,
                )
                return None
            if self._lock_file.exists() and self._lock_file.stat().st_ino == os.fstat(self.descriptor).st_ino:
                return None
            # The last holder has just deleted this lock file; create a new one.
            os.close(self.descriptor)

    def _holder(self) -> str:
        return os.pread(self.descriptor, 200, 0).decode(errors="replace")

    def close(self) -> None:
        if self.descriptor >= 0:
            self._lock_file.unlink(missing_ok=True)
            os.close(self.descriptor)
            self.descriptor = -1


def _is_on_this_machine(holder: str) -> bool:
    # An empty holder means that nobody held the lock.
    return not holder or f" on {socket.gethostname()} " in holder


def _is_running(holder: str) -> bool:
    number = re.match(r"process (\d+) ", holder)
    if number is None or not _is_on_this_machine(holder):
        return True
    try:
        os.kill(int(number[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def json_value(value: Any) -> Any:
    """Return ``value`` for JSON: null for NaN and infinity, text for types that JSON lacks.

    >>> json_value({1: (0.5, math.nan), "path": {"a": None}})
    {'1': [0.5, None], 'path': {'a': None}}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def append_lines(file: FileIO, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line per row to an unbuffered file opened for appending: all rows or none.

    Concurrent callers wait for each other if the file system supports locks. Only a killed process can leave a partial
    last line. Strings may contain lone surrogates, which a policy can write.

    Raises:
        OSError: If the rows cannot be written, for example because the disk is full.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    lock_file(file.fileno(), fcntl.LOCK_EX)
    try:
        end, rest = os.fstat(file.fileno()).st_size, memoryview(text.encode("utf-8", "surrogatepass"))
        try:
            # ``write`` may write only part of the rows. Write the rest; if the disk is full, the next call raises.
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException as error:
            if os.fstat(file.fileno()).st_size > end:
                file.truncate(end)
            if isinstance(error, OSError):
                error.filename = file.name
            raise
    finally:
        lock_file(file.fileno(), fcntl.LOCK_UN)


def lock_file(descriptor: int, how: int) -> OSError | None:
    """Call ``flock``, and return the error instead of raising it if the file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return error
    return None
