"""Room behind the context in SGLang 0.5.23; ``test_engine`` shows that turns fill the context."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from turntree.agents.engines.sglang import compat

pytestmark = pytest.mark.sglang


@pytest.fixture(autouse=True)
def second_generation() -> None:
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    if not compat.is_v2():
        pytest.skip("SGLang 0.5.12 reserves no more than a pass can have")


def test_a_rows_room_is_what_sglang_reserves_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sizing = importlib.import_module("sglang.srt.mem_cache.allocation_sizing")
    monkeypatch.setattr(sizing, "get_alloc_reserve_per_decode", lambda: 98)
    assert compat._extra_places(lambda: 12) == 98
    assert compat._extra_places(lambda: 200) == 200


def test_upstream_still_makes_that_room_for_pages_of_several_tokens_alone() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "srt/mem_cache/allocation_sizing.py").read_text(encoding="utf-8")
    room = source.partition("def get_req_to_token_extra_context_len")[2]
    before, _, after = room.partition("if page_size > 1")
    assert "extra = max(extra, get_alloc_reserve_per_decode()" in after
    assert "extra = max(" not in before
