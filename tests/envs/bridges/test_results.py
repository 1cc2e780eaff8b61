import re
from pathlib import Path

import pytest
from bridge_results import ROOT, require_result, rows


def pinned() -> dict[str, str]:
    lines = (ROOT / "requirements" / "interop.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_the_table_of_bridges_names_the_versions_that_are_pinned() -> None:
    assert rows()
    assert {package: row["version"] for package, row in rows().items()}.items() <= pinned().items()


def test_every_row_is_made_by_a_test_and_every_test_has_a_row() -> None:
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
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
