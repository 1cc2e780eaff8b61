import importlib.util
from pathlib import Path


def upstream(path: str) -> str:
    """Return a module's source on disk, such as ``verl/utils/model.py``, without importing the package."""
    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    return (Path(spec.origin or "").parent / rest).read_text(encoding="utf-8")
