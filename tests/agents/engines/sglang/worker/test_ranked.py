import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience

SCRIPT = Path(__file__).parents[4] / "support" / "two_ranks.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    meeting = str(tmp_path_factory.mktemp("ranks") / "meeting")
    started = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(rank), meeting], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        return [json.loads(rank.communicate(timeout=patience(120))[0]) for rank in started]
    finally:
        for rank in started:
            rank.kill()


def test_every_rank_verifies_what_the_first_one_drafts_at_its_width(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["led"] for rank in ranks)
    assert first["passes"] == second["passes"]
    assert len({width for width, *_ in first["passes"]}) > 1
    assert any(any(drafted) for *_, drafted in first["passes"])
    assert (first["asked"], second["asked"]) == (len(first["passes"]), 0)
    assert first["held"] > 6
    assert second["held"] == 3, "it is not told of turns either"


def test_ranks_with_stores_and_clocks_of_their_own_would_not(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["alone"] for rank in ranks)
    assert [width for width, *_ in first["passes"]] != [width for width, *_ in second["passes"]]
    assert [trees for _, *trees in first["passes"]] != [trees for _, *trees in second["passes"]]
