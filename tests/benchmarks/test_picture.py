import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmark_modules import BENCHMARKS, benchmark_module

picture = benchmark_module("picture")
DOCS = BENCHMARKS.parent / "docs"


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    files = {name: BENCHMARKS / "results" / f"{name}.json" for name in picture.RECORDS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def other(figures: Any) -> Any:
    """Change the fractions and ratios of a record; whole numbers (steps, batch sizes) stay."""
    if isinstance(figures, dict):
        return {key: other(value) for key, value in figures.items()}
    if isinstance(figures, list):
        return [other(value) for value in figures]
    return math.copysign(abs(figures) ** 1.1, figures) if isinstance(figures, float) else figures


def stale(drawn: dict[str, str]) -> set[str]:
    """Return the pictures whose file in docs differs from a new drawing."""
    old = [name for name, text in drawn.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    return {re.sub(r"_(light|dark)\.svg$", "", name) for name in old}


def test_the_pictures_in_docs_are_those_that_the_recorded_figures_give(records: dict[str, Any]) -> None:
    drawn = picture.drawn(records)
    assert not stale(drawn), "draw them again: python benchmarks/picture.py"
    assert {file.name for file in DOCS.glob("*.svg")} == set(drawn)
    for text in drawn.values():
        ElementTree.fromstring(text)


@pytest.mark.parametrize("name", picture.RECORDS)
def test_a_picture_is_stale_when_a_record_has_other_figures(name: str, records: dict[str, Any]) -> None:
    shown_by = {"algorithms": {"passes"}, "wall_clock": {"reward_seconds"}}
    shown_by |= {of: {"speedup_epoch"} for of in ("training", "demo")}
    shown_by |= {of: {"speedup_requests"} for of in ("engine", "engine_vllm", "engine_vllm_xeon")}
    both = {"speedup_epoch", "speedup_requests"}
    assert stale(picture.drawn({**records, name: other(records[name])})) == shown_by.get(name, both)


def test_the_recorded_run_of_the_screenshot_has_a_page_with_the_texts_of_its_tokens(tmp_path: Path) -> None:
    screenshot = benchmark_module("screenshot")
    page = screenshot.page_of(BENCHMARKS.parent / screenshot.ARCHIVE, tmp_path)
    assert (page.episodes, page.token_texts) == (256, True)
    for scheme in screenshot.SCHEMES:
        assert (DOCS / f"view_{scheme}.png").stat().st_size < 150_000
