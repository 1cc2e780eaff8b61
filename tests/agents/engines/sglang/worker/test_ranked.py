from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine_speed import patience

SCRIPT = Path(__file__).parents[4] / "support" / "two_ranks.py"


def two_ranks(folder: Path, *how: str) -> list[dict[str, Any]]:
    """What both ranks of a worker, in processes of their own, verify for the same requests."""
    words = [sys.executable, str(SCRIPT)]
    ranks = [
        subprocess.Popen([*words, str(rank), str(folder / "meeting"), *how], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        return [json.loads(rank.communicate(timeout=patience(120))[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_every_rank_verifies_what_the_first_one_drafts_at_its_width(tmp_path: Path) -> None:
    first, second = two_ranks(tmp_path)
    assert first["passes"] == second["passes"]
    assert len({width for width, *_ in first["passes"]}) > 1
    assert any(any(drafted) for *_, drafted in first["passes"])
    assert (first["asked"], second["asked"]) == (len(first["passes"]), 0)
    assert first["held"] > 6
    assert second["held"] == 3, "it is not told of turns either"


def test_ranks_with_stores_and_clocks_of_their_own_would_not(tmp_path: Path) -> None:
    first, second = two_ranks(tmp_path, "alone")
    assert [width for width, *_ in first["passes"]] != [width for width, *_ in second["passes"]]
    assert [trees for _, *trees in first["passes"]] != [trees for _, *trees in second["passes"]]
