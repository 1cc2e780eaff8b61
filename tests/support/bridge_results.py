"""Check result tables of the documentation (bridges, clients): each row must show what its test found."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "bridges.md"
_ROW = re.compile(r"^\| (?P<package>\S+) (?P<version>\d\S*) \| (?P<bridge>.+?) \| (?P<found>.*?) ?\|$", re.MULTILINE)


def rows(page: Path = PAGE, heading: str | None = None) -> dict[str, re.Match[str]]:
    text = "\n" + page.read_text(encoding="utf-8")
    if heading is not None:
        text = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return {row["package"]: row for row in _ROW.finditer(text)}


def require_result(package: str, found: str, page: Path = PAGE, heading: str | None = None) -> None:
    row = rows(page, heading).get(package)
    assert row is not None, f"{page} has no row for {package}; what was found: {found}"
    assert row["found"] == found, f"{page.name}, {package}: the table says {row['found']!r}, the tests found {found!r}"
