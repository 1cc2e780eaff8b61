from __future__ import annotations

from types import SimpleNamespace

import pytest

from turntree.agents.engines.sglang.refusals import RefusedSampling, RefusedSettings, check_sampling, check_server

GOOD = {
    "speculative_num_draft_tokens": 8,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "enable_dp_attention": False,
    "pp_size": 1,
    "page_size": 1,
    "attention_backend": None,
}


def test_what_trees_can_do_passes():
    check_server(SimpleNamespace(**GOOD))
    check_server(SimpleNamespace(**{**GOOD, "page_size": None, "attention_backend": "fa3"}))
    check_sampling({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.0})
    check_sampling({"repetition_penalty": None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speculative_num_draft_tokens", 0),
        ("speculative_accept_threshold_single", 0.9),
        ("speculative_accept_threshold_acc", 0.5),
        ("enable_dp_attention", True),
        ("pp_size", 2),
        ("page_size", 16),
        ("attention_backend", "cutlass_mla"),
    ],
)
def test_a_server_that_would_be_wrong_is_refused(name, value):
    with pytest.raises(RefusedSettings, match=name if name != "enable_dp_attention" else "data-parallel"):
        check_server(SimpleNamespace(**{**GOOD, name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.1), ("presence_penalty", 0.5), ("frequency_penalty", -0.5), ("min_new_tokens", 4)],
)
def test_penalties_are_refused_since_all_nodes_of_a_tree_would_have_the_same(name, value):
    with pytest.raises(RefusedSampling, match=f"{name} must be"):
        check_sampling({name: value})
