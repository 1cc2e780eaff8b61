"""Lines of JSON appended to files, whole or not at all.

Invariant: after any error the file is as it was; only a process that is killed may leave a part of a line, the last.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from typing import Any

from turntree.agents.os_errors import NO_LOCKS


def append_lines(file: FileIO, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line for each row to a file that is open for appending, unbuffered: all of them, or none.

    Others that append so, each with the file opened by itself, wait meanwhile if the file system has locks.
    Texts may have half of a surrogate, which a policy may write.

    Raises:
        OSError: If there is no space for all of them, or they cannot be written.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    _lock(file, fcntl.LOCK_EX)
    try:
        end, rest = os.fstat(file.fileno()).st_size, memoryview(text.encode("utf-8", "surrogatepass"))
        try:
            while rest:  # of a piece that did not fit, the next call says why
                rest = rest[file.write(rest) :]
        except BaseException as error:
            if os.fstat(file.fileno()).st_size > end:
                file.truncate(end)
            if isinstance(error, OSError):
                error.filename = file.name
            raise
    finally:
        _lock(file, fcntl.LOCK_UN)


def _lock(file: FileIO, how: int) -> None:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
