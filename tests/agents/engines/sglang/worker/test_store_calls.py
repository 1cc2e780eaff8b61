from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.request_wire import to_wire
from turntree.agents.engines.sglang.worker.store_calls import answer_call, call_store, read_call
from turntree.spec_tree import DialogueState

HERE = DialogueState.from_tokens([1, 2], task="7", env="sums")


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
    assert all(type(value) is int for value in request.server_args.values()), "numbers alone, as SGLang's own"
