from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from viewed_run import write_run

from turntree.agents.errors import RecordError
from turntree.agents.renderer import Renderer
from turntree.agents.viewer import view


async def test_the_page_holds_everything_and_asks_nobody(renderer: Renderer, chatml: Any, tmp_path: Path) -> None:
    run = await write_run(tmp_path / "run", renderer)
    viewed = view(run, tmp_path / "page.html", tokenizer=chatml)
    page = viewed.path.read_text(encoding="utf-8")
    assert viewed.episodes == 40
    assert viewed.token_texts
    assert not re.search(r"""(src|href)=|url\(|@import|fetch\(|https?://""", page.replace("http://www.w3.org/", ""))
    assert "<!--" not in page


async def test_without_a_tokenizer_the_page_says_so(renderer: Renderer, tmp_path: Path) -> None:
    run = await write_run(tmp_path / "run", renderer)
    assert not view(run, tmp_path / "page.html").token_texts


async def test_a_damaged_run_leaves_an_old_page_and_no_half_of_a_new_one(renderer: Renderer, tmp_path: Path) -> None:
    run = await write_run(tmp_path / "run", renderer)
    out = tmp_path / "page.html"
    out.write_text("old")
    (run / "episodes" / "step_000003.jsonl").write_text("{}\n")
    with pytest.raises(RecordError, match="step_000003"):
        view(run, out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]
