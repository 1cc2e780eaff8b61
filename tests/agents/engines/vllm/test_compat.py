from __future__ import annotations

from types import SimpleNamespace

import pytest

from turntree.agents.engines.vllm import compat


@pytest.mark.parametrize(
    ("ignore_eos", "named", "expected"),
    [(False, 2, {2, 9}), (True, None, {9}), (False, None, {2, 9})],
    ids=["the end token has a name", "it is to be ignored", "an older version has no name for it"],
)
def test_a_request_ends_at_its_stop_tokens_and_at_the_model_s_end(
    ignore_eos: bool, named: int | None, expected: set[int]
) -> None:
    parameters = SimpleNamespace(
        stop_token_ids=[9], ignore_eos=ignore_eos, eos_token_id=named, all_stop_token_ids={2, 9}
    )
    assert compat.stop_tokens(parameters) == expected


def test_the_end_tokens_of_a_model_are_those_of_all_its_files() -> None:
    config = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": [3, 4]}, hf_text_config=SimpleNamespace(eos_token_id=5)
    )
    assert compat.end_tokens(config) == {3, 4, 5}
    config = SimpleNamespace(try_get_generation_config=lambda: None, hf_text_config=SimpleNamespace())
    assert compat.end_tokens(config) == set()


def test_a_runner_without_a_gate_is_left_as_it_is() -> None:
    runner = SimpleNamespace(max_model_len=64)
    compat.draft_near_the_end(runner, 8)
    assert vars(runner) == {"max_model_len": 64}
