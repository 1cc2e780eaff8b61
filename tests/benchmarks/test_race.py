from typing import Any

import numpy as np
import pytest
from benchmark_modules import benchmark_module
from tables import table

from turntree.spec_tree import DraftBatch


def batch(**changed: Any) -> DraftBatch:
    """Two rows: 5 (6, 7 (8)) and 5."""
    columns: dict[str, Any] = table(__file__, "columns")
    types = {"probabilities": np.float32, "offsets": np.int64}
    return DraftBatch(**{name: np.array(v, types.get(name, np.int32)) for name, v in (columns | changed).items()})


@pytest.mark.parametrize(("changed", "fault"), [({}, None), *table(__file__, "malformed_drafts")])
def test_a_malformed_draft_is_noticed(changed: dict[str, Any], fault: str | None) -> None:
    bounds = {"rows": 2, "vocab": 10, "end_tokens": frozenset({9})}
    faults = benchmark_module("drafting.race").faults
    assert faults(batch(**changed), most=5, **bounds) == ([] if fault is None else [fault])
    assert faults(batch(), most=3, **bounds) == ["more nodes than asked for"]


def test_a_reader_beside_a_writer_sees_whole_drafts() -> None:
    trace = benchmark_module("drafting.traces").generated(steps=2, states=3)
    setup = benchmark_module("drafting.drafters").Setup(end_tokens=trace.end_tokens)
    found = benchmark_module("drafting.race").race(trace, setup, drafts=50)
    assert (found.drafts, found.malformed) == (50, 0)
    assert found.committed > 0
