"""Read JSON that users provide: one object per line or per file, with or without a byte order mark, UTF-8 or UTF-16.

Invariants: the error for an unreadable line names the line, and is raised before the line takes unbounded memory or
recursion. Only regular files are read, because reading a pipe could block. Lone surrogates (code points that no
tokenizer can encode) are accepted only in text that a policy may have written.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

HALF = re.compile("[\ud800-\udfff]")
MOST_BYTES = 1 << 28  #: bytes of a line, or of a file that holds one value
MOST_DEPTH = 200  #: nested lists and objects
_MOST_VALUES = 1 << 24  #: commas, colons and brackets of a text; bounds the parsed size, about 72 bytes per value
_HEAD = 4  #: bytes that json.detect_encoding needs


def parse_json(text: str) -> Any:
    """Parse untrusted text as JSON, with bounds on depth and size.

    Raises:
        ValueError: If the text is not JSON, is nested deeper than ``MOST_DEPTH``, or has too many values.

    >>> parse_json("[" * 10_000)
    Traceback (most recent call last):
    ValueError: nested deeper than 200
    """
    if len(text) > _MOST_VALUES and sum(map(text.count, ",:[{")) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    too_deep = ValueError(f"nested deeper than {MOST_DEPTH}")
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    if text.count("[") + text.count("{") > MOST_DEPTH and is_deeper(value, MOST_DEPTH):
        raise too_deep
    return value


def is_deeper(value: Any, most: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        entries = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [one for inner in entries for one in inner if isinstance(one, dict | list)]
    return bool(level)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise ``OSError`` at once for anything else, such as a pipe."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    file = os.fstat(handle)
    if stat.S_ISREG(file.st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(file.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(f"{path} is no regular file; write what it gives to one, and name that")


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path} has more than {most:,} bytes, which is the most that is read of it")
    return data


def read_json(path: Path) -> Any:
    data = read_bytes(path)
    return parse_json(data.decode(json.detect_encoding(data), "surrogatepass"))


def read_text(path: Path, *, most: int = MOST_BYTES) -> str:
    """Read a text without its byte order mark.

    Raises:
        OSError: If the file cannot be read or has more than ``most`` bytes.
        UnicodeDecodeError: If the file is not UTF-8 and has no mark of another encoding.
    """
    data = read_bytes(path, most=most)
    marked = data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    return data.decode(json.detect_encoding(data) if marked else "utf-8")


def json_lines(
    path: Path,
    refuse: Callable[[int, str], Exception],
    *,
    halves: bool = True,
    growing: bool = False,
    torn: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with their line numbers (from 1), skipping blank lines.

    Args:
        refuse: Makes the exception to raise, from the line's number and a description of the problem.
        halves: Whether texts may contain lone surrogates (halves of a surrogate pair).
        growing: Whether the file is still being written. Then a last line without a line break is not read.
        torn: Called, instead of ``refuse``, with the number of a last line that has no line break and is not JSON.

    Raises:
        OSError: If the file cannot be read.
    """
    for number, line in enumerate(_lines(path), start=1):
        if len(line) > MOST_BYTES:
            raise refuse(number, f"expected at most {MOST_BYTES:,} bytes a line, got more")
        if not line.strip() or (growing and not line.endswith(b"\n")):
            continue
        try:
            value = parse_json(line.decode("utf-8", "surrogatepass" if halves else "strict"))
        except ValueError as error:
            if torn is not None and not line.endswith(b"\n"):
                torn(number)
                return
            problem = f"expected one JSON object a line, got bad JSON, {line[:60]!r} ({error})"
            raise refuse(number, problem) from error
        if not isinstance(value, dict):
            raise refuse(number, f"expected one JSON object a line, got {type(value).__name__}")
        if not halves and (problem := half_in(value, line)):
            raise refuse(number, problem)
        yield number, value


def half_in(value: Any, written: bytes = b"\\ud") -> str:
    if b"\\ud" not in written.lower():  # in valid UTF-8, a lone surrogate can only be written as an escape
        return ""
    found = HALF.search(json.dumps(value, ensure_ascii=False))
    return f"half of a surrogate, {found[0]!r}, is no character; write the whole one" if found else ""


def _lines(path: Path) -> Iterator[bytes]:
    # Reads at most one byte more than MOST_BYTES of a line. A longer line is cut, but still too long for the caller.
    with open_regular(path) as file:
        encoding = json.detect_encoding(file.read(_HEAD))
        file.seek(len(b"\xef\xbb\xbf") if encoding == "utf-8-sig" else 0)
        if encoding.startswith("utf-8"):
            yield from iter(lambda: file.readline(MOST_BYTES + 1), b"")
            return
        text = TextIOWrapper(file, encoding, "replace", newline="\n")
        for line in iter(lambda: text.readline(MOST_BYTES + 1), ""):
            yield line.encode()
