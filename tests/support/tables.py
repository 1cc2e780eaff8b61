"""Cases and texts of tests that are too long to stand between the tests."""

import tomllib
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """The rows, or the text, called ``name`` of the nearest ``cases.toml`` that has it, beside a test file or above."""
    for folder in Path(test_file).parents:
        cases = folder / "cases.toml"
        if cases.exists() and name in (found := tomllib.loads(cases.read_text(encoding="utf-8"))):
            return found[name]
    raise KeyError(f"no cases.toml beside or above {test_file} has {name}")
