from __future__ import annotations

import pytest

from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.request_wire import seed_of, state_of
from turntree.agents.verl.backends import turn_request
from turntree.spec_tree import DialogueState

SAMPLING = Sampling(temperature=0.5, max_tokens=3, stop_token_ids=(9,), seed=4)
STATE = DialogueState.from_tokens((5,), task="t")


@pytest.mark.parametrize("backend", ["turntree", "vllm", "trtllm"])
def test_how_to_draw_reaches_every_backend_under_shared_names(backend: str) -> None:
    parameters, _ = turn_request(backend, SAMPLING, STATE)
    assert (parameters["temperature"], parameters["max_tokens"], parameters["stop_token_ids"]) == (0.5, 3, [9])
    assert parameters["logprobs"] is True


def test_turntrees_server_takes_the_state_itself() -> None:
    parameters, arguments = turn_request("turntree", SAMPLING, STATE)
    assert arguments == {"state": STATE}
    assert parameters["seed"] == 4


def test_vllm_takes_state_and_seed_in_extra_args_and_no_other_end_of_a_turn() -> None:
    parameters, arguments = turn_request("vllm", SAMPLING, STATE)
    assert arguments == {}
    assert state_of(parameters["extra_args"]) == STATE
    assert seed_of(parameters["extra_args"]) == 4
    assert "seed" not in parameters  # vLLM's own seeds depend on how drafts went
    assert parameters["ignore_eos"] is True


def test_a_backend_that_is_not_known_is_given_the_seed_and_no_state() -> None:
    parameters, arguments = turn_request("trtllm", SAMPLING, STATE)
    assert parameters["seed"] == 4
    assert arguments == {}
    assert "extra_args" not in parameters
