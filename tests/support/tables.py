"""Cases and texts of tests that are too long to stand between the tests."""

import tomllib
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """The rows, or the text, called ``name`` of ``cases.toml`` beside a test file."""
    return tomllib.loads(Path(test_file).with_name("cases.toml").read_text(encoding="utf-8"))[name]
