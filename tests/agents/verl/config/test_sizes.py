import logging

import pytest
from tables import table

from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.sizes import size_checks

CPU = ("engine=local", "size=tiny", "env=arithmetic", "actor_rollout_ref.model.path=some/model")
WHOLE = "actor_rollout_ref.actor.use_dynamic_bsz=false"
GPUS = ("engine=vllm", "size=7b", "env=gsm8k")


def check(*overrides: str) -> None:
    composition = compose(None, overrides)
    for one in size_checks(composition.verl, composition.settings):
        one()


@pytest.mark.parametrize(("overrides", "message"), table(__file__, "sizes_that_do_not_fit"))
def test_sizes_that_do_not_fit_are_refused_with_both_numbers(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check(*overrides)
    assert "\n" not in str(refused.value)


def test_tasks_that_are_never_played_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(*GPUS)
        assert "the last 88 of the 7000 tasks are never played" in caplog.text
        assert "turntree.train_tasks=6912" in caplog.text
        caplog.clear()
        check(*GPUS, "turntree.train_tasks=6912")
        check(*GPUS, "data.shuffle=true")
        check(*GPUS, "algorithm=dapo")
        assert "never played" not in caplog.text


def test_without_a_number_of_tasks_the_environment_is_asked_later() -> None:
    check(*CPU, "turntree.train_tasks=null", "data.train_batch_size=4096")
    with pytest.raises(ConfigError, match="there are 1024"):
        check(*CPU, "turntree.train_tasks=1024", "data.train_batch_size=4096")
