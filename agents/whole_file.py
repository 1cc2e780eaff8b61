"""Files that are there whole or not at all: written beside their place, and then moved onto it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file; its folder is made if it is missing.

    Args:
        path: The file; an old one stays as it was until the new one is whole.
        content: Text goes as UTF-8.
    """
    with replacing(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of ``path`` at the end of the block.

    If the block raises, ``path`` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
