import json
from typing import Any

import pytest
from playing import SHARED

DATA = SHARED / "data"


def shared_rows(name: str, answer_format: str) -> list[dict[str, Any]]:
    """Return rows of a file outside the repository by answer-format prefix; skip the test without the file."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not there; set TURNTREE_DATA to the folder that holds data/{name}")
    rows = map(json.loads, (DATA / name).read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["contract"].startswith(answer_format) and row["right"] != "open"]
