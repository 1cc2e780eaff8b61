"""Files that are written whole or not at all.

Invariant: whatever goes wrong, at the name that was asked for stands what stood
there before, and nothing is left beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of ``path`` once the block has ended without an error.

    Folders on the way are made. The file to write has the ending of ``path``.

    Raises:
        OSError: If it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write bytes, or a text as UTF-8.

    Raises:
        OSError: If it cannot be written.
    """
    with whole_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def ensure_writable(path: Path) -> None:
    """See now that a file can be written there, not when hours have been spent on what goes into it.

    Raises:
        OSError: If it cannot be written.
    """
    if path.exists():
        path.open("ab").close()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        probe.touch()
    finally:
        probe.unlink(missing_ok=True)
