"""Where the files of a data set lie: in a folder that was named, or below ``$TURNTREE_DATA/data``; the cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from turntree.envs.errors import DataError


def default_folder(name: str) -> Path | None:
    """``$TURNTREE_DATA/data/NAME``, which need not exist; ``None`` where the variable is not set."""
    root = os.environ.get("TURNTREE_DATA")
    return Path(root) / "data" / name if root else None


def cache_folder() -> Path:
    """Where what is made once and used again lies: ``TURNTREE_CACHE``, else ``~/.cache/turntree``."""
    return Path(os.environ.get("TURNTREE_CACHE") or Path.home() / ".cache" / "turntree")


def data_folder(data: str | Path | None, *, name: str, holds: str) -> Path:
    """The folder of a data set that has several files.

    Args:
        data: The folder; ``None`` takes ``default_folder(name)``.
        holds: What should lie in it, for the error message.

    Raises:
        DataError: If there is no such folder.
    """
    folder = default_folder(name) if data is None else Path(data)
    if folder is None or not folder.expanduser().is_dir():
        got = "nothing" if folder is None else repr(str(folder))
        raise DataError(f"expected data=FOLDER with {holds}, got {got}")
    return folder.expanduser()
