from __future__ import annotations

import pytest

from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.settings import ALGORITHM, VARIABLE, SglangSettings, settings_from_environment
from turntree.spec_tree import ForestConfig


def test_the_worker_reads_the_settings_that_the_engine_was_given():
    forest = ForestConfig(rollouts_per_state=7, end_tokens=frozenset({3, 1}))
    settings = SglangSettings(widths=(1, 4), min_probability=0.3, forest=forest)
    config = SglangEngineConfig(draft_tokens=8, speculation=settings)
    assert settings_from_environment({VARIABLE: config.to_variable()}) == settings


def test_drafts_are_server_arguments():
    drafting = SglangEngineConfig(draft_tokens=6, max_context=100, engine_args={"tp_size": 2}).to_engine_args("m")
    assert drafting["speculative_algorithm"] == ALGORITHM
    assert (drafting["speculative_num_draft_tokens"], drafting["tp_size"]) == (6, 2)
    assert drafting["context_length"] >= 100
    assert "speculative_algorithm" not in SglangEngineConfig().to_engine_args("m")
    hidden = SglangEngineConfig(draft_tokens=6, speculation=SglangSettings(replace_ngram=True)).to_engine_args("m")
    assert hidden["speculative_algorithm"] == "NGRAM"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"draft_tokens": -1}, "draft_tokens must be at least 0"),
        ({"engine_args": {"context_length": 5}}, "context_length"),
        ({"draft_tokens": 8, "engine_args": {"speculative_algorithm": "NGRAM"}}, "draft_tokens=0"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SglangEngineConfig(**fields)


def test_another_drafter_goes_alone():
    config = SglangEngineConfig(engine_args={"speculative_algorithm": "NGRAM"})
    assert config.speculates
    assert config.to_engine_args("m")["speculative_algorithm"] == "NGRAM"
