import pytest


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("vllm", "sglang")]
)
def test_every_claim_holds_over_an_engine_and_its_control_is_noticed(engine: str) -> None:
    from laws.external_rows import rows as rows_of

    rows = list(rows_of(engine, 4000))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) == 3
