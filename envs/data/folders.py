from __future__ import annotations

import os
from pathlib import Path

from turntree.envs.errors import DataError


def default_folder(name: str) -> Path | None:
    """Return ``$TURNTREE_DATA/data/NAME``, which need not exist; ``None`` if the variable is not set."""
    root = os.environ.get("TURNTREE_DATA")
    return Path(root) / "data" / name if root else None


def cache_folder() -> Path:
    """Return the cache folder: ``TURNTREE_CACHE``, or ``~/.cache/turntree``."""
    return Path(os.environ.get("TURNTREE_CACHE") or Path.home() / ".cache" / "turntree")


def data_folder(data: str | Path | None, *, name: str, holds: str) -> Path:
    """Return the folder of a data set with several files; ``None`` takes ``default_folder(name)``.

    ``holds`` describes the expected files for the error message.

    Raises:
        DataError: If the folder does not exist.
    """
    folder = default_folder(name) if data is None else Path(data)
    if folder is None or not folder.expanduser().is_dir():
        got = "nothing" if folder is None else repr(str(folder))
        raise DataError(f"expected data=FOLDER with {holds}, got {got}")
    return folder.expanduser()
