import re
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.errors import RecordError
from turntree.agents.viewer import view


def test_the_page_holds_everything_and_asks_nobody(run: Path, chatml: Any, tmp_path: Path) -> None:
    viewed = view(run, tmp_path / "page.html", tokenizer=chatml)
    page = viewed.path.read_text(encoding="utf-8")
    assert viewed.episodes == 40
    assert viewed.token_texts
    assert not re.search(r"""(src|href)=|url\(|@import|fetch\(|https?://""", page.replace("http://www.w3.org/", ""))
    assert "<!--" not in page
    assert not view(run, tmp_path / "page.html").token_texts


def test_a_damaged_run_leaves_an_old_page_and_no_half_of_a_new_one(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    (run / "episodes" / "step_000003.jsonl").write_text("{}\n")
    with pytest.raises(RecordError, match="step_000003"):
        view(run, out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]
