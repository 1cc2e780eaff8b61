"""The source of a library as it is on disk, whatever has been patched in memory."""

import importlib.util
from pathlib import Path


def upstream(path: str) -> str:
    """A module's text, by a path like ``verl/utils/model.py``; the package is not imported."""
    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    return (Path(spec.origin or "").parent / rest).read_text(encoding="utf-8")
