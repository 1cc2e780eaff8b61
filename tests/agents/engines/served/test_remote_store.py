import json
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.request_wire import to_wire
from turntree.agents.engines.served.remote_store import carry_out
from turntree.spec_tree import DialogueState, SpecForest

HERE = DialogueState.from_tokens([1, 2], task="7", env="sums")


def given() -> SpecForest:
    forest = SpecForest()
    carry_out(forest, "insert", json.loads(json.dumps([[to_wire(HERE)] * 2, [[7, 8], [9]]])), first_rank=False)
    return forest


def test_the_first_of_the_ranks_writes_what_all_read(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    carry_out(given(), "save", [path], first_rank=False)
    assert not Path(path).exists()
    carry_out(given(), "save", [path], first_rank=True)
    other = SpecForest()
    carry_out(other, "restore", [path], first_rank=False)
    assert other.finished([HERE]) == given().finished([HERE]) == [2]


@pytest.mark.parametrize(("method", "args"), [("clear", []), ("save", []), ("insert", [[]])])
def test_other_calls_are_refused(method: str, args: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"expected insert, save or restore .*, got {method!r}"):
        carry_out(SpecForest(), method, args, first_rank=True)
