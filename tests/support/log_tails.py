"""Hooks that add the ends of the processes' logs to the report of a failed test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LINES = 40
FILES = 20
BASE = pytest.StashKey[Path]()  #: folder with the temporary folders of all tests
BEGUN = pytest.StashKey[float]()  #: start of a module's first test; fixtures of the module live as long


@pytest.fixture(scope="session", autouse=True)
def where_logs_lie(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    request.config.stash[BASE] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    module = item.getparent(pytest.Module) or item
    begun = module.stash.setdefault(BEGUN, call.start)
    if report.failed and BASE in item.config.stash:
        report.sections += tails(item.config.stash[BASE], begun - 1)
    return report


def tails(base: Path, since: float) -> list[tuple[str, str]]:
    """Return names and last lines of logs written since ``since``, newest first; Ray's folders lie outside ``base``."""
    ray = Path(tempfile.gettempdir()).glob("tt-*/session_*/logs/*.err")
    found = {path.resolve() for path in (*base.rglob("*.log"), *base.rglob("logs/*.err"), *ray)}
    written = {path: path.stat() for path in found if path.is_file()}
    newest = sorted(written, key=lambda path: written[path].st_mtime, reverse=True)
    kept = [path for path in newest if written[path].st_size and written[path].st_mtime >= since]
    return [(f"the end of {path}", tail(path)) for path in kept[:FILES]]


def tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LINES:])
