import re
from pathlib import Path

from bridge_results import ROOT
from client_results import rows


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_the_table_of_clients_names_the_versions_that_are_pinned() -> None:
    assert rows()
    assert {package: row["version"] for package, row in rows().items()}.items() <= pinned("interop").items()


def test_every_row_is_made_by_a_test_and_every_test_has_a_row() -> None:
    others = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    calls = [re.findall(r'require_result\(\s*"([\w-]+)"', path.read_text(encoding="utf-8")) for path in others]
    assert {package for packages in calls for package in packages} == set(rows())
