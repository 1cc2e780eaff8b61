"""JSON in files of the user, an object a line or one a file: with a byte order mark or without, in UTF-8 or UTF-16.

Invariant: what cannot be read is refused with its line. Texts with half of a surrogate, which no tokenizer reads, are
read where a policy may have written them, and refused in what it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

HALF = re.compile("[\ud800-\udfff]")
_HEAD = 4
"""Bytes by which ``json.detect_encoding`` knows an encoding."""


def read_text(path: Path) -> str:
    """A text, without its byte order mark.

    Raises:
        OSError: If it cannot be read.
        UnicodeDecodeError: If it is neither UTF-8 nor has a mark of another encoding.
    """
    data = path.read_bytes()
    marked = data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"))
    return data.decode(json.detect_encoding(data) if marked else "utf-8")


def json_lines(
    path: Path, refuse: Callable[[int, str], Exception], *, halves: bool = True, growing: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, each with the number of its line, counted from 1; blank lines have none.

    Args:
        path: The file.
        refuse: The exception for a line and what is wrong with it.
        halves: Whether texts may have half of a surrogate.
        growing: Whether the file is still written: a last line without its end is not read.

    Raises:
        OSError: If the file cannot be read.
    """
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip() or (growing and not line.endswith(b"\n")):
            continue
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass" if halves else "strict"))
        except (ValueError, RecursionError) as error:
            said = f"expected one JSON object a line, got bad JSON, {line[:60]!r} ({error})"
            raise refuse(number, said) from error
        if not isinstance(value, dict):
            raise refuse(number, f"expected one JSON object a line, got {type(value).__name__}")
        if not halves and (said := half_in(value, line)):
            raise refuse(number, said)
        yield number, value


def half_in(value: Any, written: bytes = b"\\ud") -> str:
    """What is wrong with a JSON value that has half of a surrogate, ``written`` so; empty where none has."""
    if b"\\ud" not in written.lower():  # in valid UTF-8 a half can only be an escape
        return ""
    found = HALF.search(json.dumps(value, ensure_ascii=False))
    return f"half of a surrogate, {found[0]!r}, is no character; write the whole one" if found else ""


def _lines(path: Path) -> Iterator[bytes]:
    """Lines in UTF-8, without the mark."""
    with path.open("rb") as file:
        encoding = json.detect_encoding(file.read(_HEAD))
        if encoding.startswith("utf-8"):
            file.seek(len(b"\xef\xbb\xbf") if encoding == "utf-8-sig" else 0)
            yield from file
            return
    yield from BytesIO(path.read_bytes().decode(encoding, "replace").encode())
