"""The blocks of Python in the documentation run, page by page, each page in one go."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from interpreter import python
from machine_speed import patience

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_ALONE = {
    "docs/rewards.md": "its first block names texts and golds of the reader's",
    "docs/howto/vllm.md": "needs vLLM",
    "docs/howto/sglang.md": "needs SGLang",
    "README.md": "needs a model",
}
"""Pages whose blocks cannot run by themselves, and why."""
PAGES = {
    str(path.relative_to(ROOT)): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


def test_there_are_pages_to_run() -> None:
    assert len(PAGES["docs/tutorial.md"]) >= 8


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks and page not in NOT_ALONE])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(PAGES[page]), encoding="utf-8")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = python("page.py", cwd=tmp_path, env=env, timeout=patience(300))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("page", [page for page in NOT_ALONE if page in PAGES])
def test_the_blocks_of_every_other_page_are_python(page: str) -> None:
    for block in PAGES[page]:
        ast.parse(block)
