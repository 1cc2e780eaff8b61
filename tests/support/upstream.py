"""The source of a library as it is on disk, whatever has been patched in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def upstream(path: str) -> str:
    """A module's text; its package is not imported.

    Args:
        path: From the package's own folder on: ``verl/utils/model.py``.
    """
    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    return (Path(spec.origin or "").parent / rest).read_text(encoding="utf-8")
