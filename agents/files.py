"""Files that are written whole or not at all, by one process at a time, and values as strict JSON.

Invariant: after any error the requested path still holds its old content, and no temporary file is
left beside it. What is no regular file (``/dev/stdout``, a pipe) is never replaced: it is written through.
A link stays one, and the file behind it is replaced.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any

from turntree.agents.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file that replaces ``path`` once the block has ended without an error.

    Missing folders are created. The temporary file has the suffix of ``path``.

    Raises:
        OSError: If it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    through = is_special(path)
    target = path if through else path.resolve()
    folder = Path(tempfile.gettempdir()) if through else target.parent
    folder.mkdir(parents=True, exist_ok=True)
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
    """Whether there is something at ``path`` that is neither a regular file nor a folder, or a stream of the process.

    >>> is_special(Path("/dev/null")), is_special(Path("/dev/stdout")), is_special(Path("no such file"))
    (True, True, False)
    """
    streams = ("/dev", "/proc")  # a stream may lead to a regular file, which others hold open
    return str(path.absolute()).startswith(streams) or (path.exists() and not path.is_file() and not path.is_dir())


def write_whole(path: Path, content: str | bytes) -> None:
    """Write bytes, or a text as UTF-8.

    Raises:
        OSError: If it cannot be written.
    """
    with whole_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def keep_apart(out: Path, read: Iterable[Any], *, folders: bool = True) -> None:
    """Refuse to write over what is read, whatever other path or link names it.

    Args:
        read: What is read: files, or folders, of which every file counts; mappings and lists are searched for such
            names, and what names nothing here (an id of a hub, a number) is left out.
        folders: Whether folders count.

    Raises:
        UsageError: If the file is one of them.
    """
    there = _status(out)
    for name in read:
        if isinstance(name, Mapping | list | tuple):
            keep_apart(out, name.values() if isinstance(name, Mapping) else name, folders=folders)
            continue
        found = _status(name) if isinstance(name, str | Path) else None
        if found is None and not isinstance(name, Path):
            continue
        path, folder = Path(name).expanduser(), found is not None and stat.S_ISDIR(found.st_mode)
        if folder and not folders:
            continue
        same = not folder and out.resolve() == path.resolve()
        if there is not None and stat.S_ISREG(there.st_mode):
            inside = [_status(one) for one in path.iterdir()] if folder else [found]
            same |= any(one is not None and os.path.samestat(there, one) for one in inside)
            same |= folder and out.resolve().is_relative_to(path.resolve())
        if same:
            raise UsageError(f"{out} is a file that is read, and would be lost; name another one to write")


def _status(name: str | Path) -> os.stat_result | None:
    try:
        return Path(name).expanduser().stat()
    except (OSError, ValueError, RuntimeError):  # nothing, or no name of a file
        return None


def ensure_writable(path: Path) -> None:
    """Check that a file can be written there, before hours are spent on its content.

    Raises:
        OSError: If it cannot be written.
    """
    if path.exists():
        path.open("ab").close()
        return
    path = path.resolve()  # a link to a file that is not there yet
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        probe.touch()
    finally:
        probe.unlink(missing_ok=True)


class OneWriter:
    """An exclusive lock on writing a file, until it is closed or the process ends; kept in a file beside it."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Args:
            path: The file; its folder is created.

        Raises:
            UsageError: If another process holds it; the message names that process.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.with_name(f".{path.name}.lock")
        while True:
            self._descriptor = os.open(self._beside, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(self._descriptor, 200).decode(errors="replace") or "another process"
                os.close(self._descriptor)
                raise UsageError(f"{path} is being written by {holder}; wait for it, or name another file") from None
            if self._beside.exists() and self._beside.stat().st_ino == os.fstat(self._descriptor).st_ino:
                break
            os.close(self._descriptor)  # its last holder has just taken it away
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def close(self) -> None:
        """Release the lock; closing twice does nothing."""
        if self._descriptor >= 0:
            self._beside.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def json_value(value: Any) -> Any:
    """``value`` with null for NaN and infinite floats, and text for what JSON cannot express.

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
