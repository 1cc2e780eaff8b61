from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.sglang.worker.store_calls import answer_call, call_store, carry_out, read_call
from turntree.agents.engines.state_wire import to_wire
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


def test_sglangs_own_settings_are_left_to_it() -> None:
    for settings in ({}, {"pp_max_micro_batch_size": 8}):
        assert read_call(settings) is None
        request = SimpleNamespace(server_args=settings)
        assert answer_call(lambda scheduler, asked: (scheduler, asked), "scheduler", request) == ("scheduler", request)


@pytest.mark.sglang
@pytest.mark.parametrize("done", [[True, True], [True, False]])
async def test_a_call_reaches_every_scheduler_in_the_form_that_sglang_takes(done: list[bool]) -> None:
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    heard: list[Any] = []

    async def set_internal_state(request: Any) -> list[bool]:
        heard.append(request)
        return done

    manager = SimpleNamespace(set_internal_state=set_internal_state)
    if all(done):
        await call_store(manager, "insert", [to_wire(HERE)], [[7]])
    else:
        with pytest.raises(OSError, match="could not insert"):
            await call_store(manager, "insert", [to_wire(HERE)], [[7]])
    (request,) = heard
    assert read_call(request.server_args) == ["insert", [to_wire(HERE)], [[7]]]
    assert all(type(value) is int for value in request.server_args.values()), "0.5.23 takes numbers alone"
