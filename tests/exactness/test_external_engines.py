"""The rows of the exactness report for vLLM and SGLang: whole-turn reuse over the engines themselves."""

from __future__ import annotations

import pytest


def check(name: str) -> None:
    from laws.external_rows import rows as rows_of

    rows = list(rows_of(name, 4000))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) == 3


@pytest.mark.vllm
@pytest.mark.release
@pytest.mark.slow
def test_every_claim_holds_over_vllm_and_its_control_is_noticed() -> None:
    check("vllm")


@pytest.mark.sglang
@pytest.mark.release
@pytest.mark.slow
def test_every_claim_holds_over_sglang_and_its_control_is_noticed() -> None:
    check("sglang")
