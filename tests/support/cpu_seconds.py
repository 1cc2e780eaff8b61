"""Hook that writes the running test's file, so that ``make test`` can attribute CPU seconds to it."""

import os
from pathlib import Path

NOW = "TURNTREE_TEST_FILE"


def pytest_runtest_logstart(nodeid: str) -> None:
    if NOW in os.environ:
        Path(os.environ[NOW]).write_text(nodeid.partition("::")[0])
