from types import SimpleNamespace

import pytest
from tables import table

from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.settings import ALGORITHM, VARIABLE, SglangSettings, settings_from_environment
from turntree.agents.engines.sglang.worker.refusals import (
    RefusedSampling,
    RefusedSettings,
    check_sampling,
    check_server,
)
from turntree.spec_tree import ForestConfig

GOOD = {"speculative_num_draft_tokens": 8, "enable_dp_attention": False, "attention_backend": None}
GOOD |= {"speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0}
GOOD |= {"pp_size": 1, "page_size": 1}
WRONG = {"speculative_num_draft_tokens": 0, "enable_dp_attention": True, "attention_backend": "cutlass_mla"}
WRONG |= {"speculative_accept_threshold_single": 0.9, "speculative_accept_threshold_acc": 0.5}
WRONG |= {"pp_size": 2, "page_size": 16}


def test_the_worker_reads_the_settings_that_the_engine_was_given():
    forest = ForestConfig(rollouts_per_state=7, end_tokens=frozenset({3, 1}))
    settings = SglangSettings(widths=(1, 4), min_probability=0.3, adaptive=False, forest=forest)
    config = SglangEngineConfig(draft_tokens=8, speculation=settings)
    assert settings_from_environment({VARIABLE: config.to_variable()}) == settings
    assert settings_from_environment({}) == settings_from_environment({VARIABLE: ""}) == SglangSettings()


def test_drafts_are_server_arguments():
    drafting = SglangEngineConfig(draft_tokens=6, max_context=100, engine_args={"tp_size": 2}).to_engine_args("m")
    assert drafting["speculative_algorithm"] == ALGORITHM
    assert (drafting["speculative_num_draft_tokens"], drafting["tp_size"]) == (6, 2)
    assert drafting["context_length"] >= 100
    assert "speculative_algorithm" not in SglangEngineConfig().to_engine_args("m")
    hidden = SglangEngineConfig(draft_tokens=6, speculation=SglangSettings(replace_ngram=True)).to_engine_args("m")
    assert hidden["speculative_algorithm"] == "NGRAM"
    config = SglangEngineConfig(engine_args={"speculative_algorithm": "NGRAM"})
    assert (config.speculates, config.to_engine_args("m")["speculative_algorithm"]) == (True, "NGRAM")


@pytest.mark.parametrize(("fields", "message"), table(__file__, "impossible_engines"))
def test_an_engine_that_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SglangEngineConfig(**fields)


def test_the_widest_is_always_among_the_widths_two_on_an_accelerator():
    assert SglangSettings().widths_within(8) == (1, 2, 4, 8)
    assert SglangSettings().widths_within(1) == (1,)
    assert SglangSettings(widths=(4,)).widths_within(4) == (4,)
    assert SglangSettings(widths=(1, 16)).widths_within(6) == (1, 6)
    assert SglangSettings().widths_within(9, device="cuda") == (1, 9)
    assert SglangSettings(widths=(1, 4)).widths_within(9, device="cuda") == (1, 4, 9)


@pytest.mark.parametrize(("text", "complaint"), table(__file__, "wrong_settings"))
def test_a_wrong_setting_says_what_is_wrong(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        settings_from_environment({VARIABLE: text})


def test_what_trees_can_do_passes():
    check_server(SimpleNamespace(**GOOD))
    check_server(SimpleNamespace(**{**GOOD, "page_size": None, "attention_backend": "fa3"}))
    check_sampling({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.0})
    check_sampling({"repetition_penalty": None})


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_a_server_that_would_be_wrong_is_refused(name, value):
    with pytest.raises(RefusedSettings, match=name if name != "enable_dp_attention" else "data-parallel"):
        check_server(SimpleNamespace(**{**GOOD, name: value}))


@pytest.mark.parametrize(("name", "value"), table(__file__, "penalties"))
def test_penalties_are_refused_since_all_nodes_of_a_tree_would_have_the_same(name, value):
    with pytest.raises(RefusedSampling, match=f"{name} must be"):
        check_sampling({name: value})
