from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from typing import Any

from turntree.agents.os_errors import NO_LOCKS


def append_lines(file: FileIO, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line per row to an unbuffered file opened for appending: all rows or none.

    Concurrent callers wait for each other if the file system supports locks. Only a killed process can leave a partial
    last line. Strings may contain lone surrogates, which a policy can write.

    Raises:
        OSError: If the rows cannot be written, for example because the disk is full.
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
