import tomllib
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """Return the entry ``name`` of the nearest ``cases.toml`` that has it, next to a test file or above."""
    for folder in Path(test_file).parents:
        cases = folder / "cases.toml"
        if cases.exists() and name in (found := tomllib.loads(cases.read_text(encoding="utf-8"))):
            return found[name]
    raise KeyError(f"no cases.toml beside or above {test_file} has {name}")
