from __future__ import annotations

import pytest

from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.vllm.parameters import UnsupportedSampling, parameters


def test_names_and_meanings_are_vllms() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, stop_token_ids=(3,), seed=5, top_logprobs=2)
    fields = parameters(sampling, speculates=True)
    assert (fields["temperature"], fields["top_p"], fields["max_tokens"]) == (0.5, 0.9, 7)
    assert fields["top_k"] == 0  # all tokens
    assert fields["logprobs"] == 2
    assert fields["stop_token_ids"] == [3]
    assert fields["ignore_eos"] is True  # a turn ends where the caller says
    assert "seed" not in fields


def test_min_p_is_refused_where_drafts_are_verified_and_only_there() -> None:
    with pytest.raises(UnsupportedSampling, match=r"min_p=0\.1"):
        parameters(Sampling(min_p=0.1), speculates=True)
    assert parameters(Sampling(min_p=0.1), speculates=False)["min_p"] == 0.1


def test_a_temperature_that_vllm_would_raise_is_refused() -> None:
    with pytest.raises(UnsupportedSampling, match=r"0\.001"):
        parameters(Sampling(temperature=0.001), speculates=False)
    assert parameters(Sampling(temperature=0), speculates=False)["temperature"] == 0
