"""Cases of tests that are too many to stand between the tests."""

import tomllib
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> list[Any]:
    """The rows called ``name`` of ``cases.toml`` beside a test file."""
    rows: list[Any] = tomllib.loads(Path(test_file).with_name("cases.toml").read_text(encoding="utf-8"))[name]
    return rows
