import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bridge_results
import client_results
import pytest
from bridge_results import ROOT, require_result

Rows = Callable[[], dict[str, Any]]
each_table = pytest.mark.parametrize(
    ("rows", "folder"),
    [(bridge_results.rows, "envs/bridges"), (client_results.rows, "agents/gateway/clients")],
    ids=["bridges", "clients"],
)


@each_table
def test_a_table_names_the_versions_that_are_pinned(rows: Rows, folder: str) -> None:
    lines = (ROOT / "requirements" / "interop.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    assert rows()
    assert {package: row["version"] for package, row in rows().items()}.items() <= pinned.items()


@each_table
def test_every_row_is_made_by_a_test_and_every_test_has_a_row(rows: Rows, folder: str) -> None:
    others = [path for path in (ROOT / "tests" / folder).glob("test_*.py") if path != Path(__file__)]
    calls = [re.findall(r'require_result\(\s*"([\w-]+)"', path.read_text(encoding="utf-8")) for path in others]
    assert {package for packages in calls for package in packages} == set(rows())


def test_a_table_that_says_more_than_was_found_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bridges.md"
    page.write_text("| package | bridge | result |\n|---|---|---|\n| gym 1.0 | `Gym` | 3 of 3 |\n", encoding="utf-8")
    require_result("gym", "3 of 3", page)
    with pytest.raises(AssertionError, match="the tests found '2 of 3'"):
        require_result("gym", "2 of 3", page)
    with pytest.raises(AssertionError, match="no row for gem"):
        require_result("gem", "1 of 1", page)
