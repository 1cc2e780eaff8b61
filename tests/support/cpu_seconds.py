"""Which file's test runs, written for `make test`, which counts CPU seconds by it: a hook for a ``conftest.py``."""

import os
from pathlib import Path

NOW = "TURNTREE_TEST_FILE"
"""Variable that names the file to write to."""


def pytest_runtest_logstart(nodeid: str) -> None:
    if NOW in os.environ:
        Path(os.environ[NOW]).write_text(nodeid.partition("::")[0])
