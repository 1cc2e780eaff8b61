import logging

import pytest

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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("engine=vllm", "size=7b", "env=repair"), r"data\.train_batch_size=128 tasks, and there are 72"),
        ((*CPU, "data.train_max_samples=31"), r"train_batch_size=32 tasks, .* 31 .*data\.train_max_samples"),
        ((*CPU, "data.gen_batch_size=5"), r"multiple of data\.gen_batch_size, got 32 and 5"),
        ((*CPU, "data.val_batch_size=0"), r"data\.val_batch_size is at least 1, got 0"),
        ((*CPU, WHOLE, "actor_rollout_ref.actor.ppo_mini_batch_size=64"), r"actor\.ppo_mini_batch_size .* 64 and 32"),
        ((*CPU, "algorithm=ppo", "critic.ppo_mini_batch_size=0"), r"critic\.ppo_mini_batch_size .* got 0 and 32"),
        ((*GPUS, "trainer.n_gpus_per_node=7"), r"tensor_model_parallel_size=2, .*n_gpus_per_node=7"),
        (
            (*GPUS, "actor_rollout_ref.actor.ppo_mini_batch_size=3", "actor_rollout_ref.rollout.n=3"),
            r"ppo_mini_batch_size=3 x actor_rollout_ref\.rollout\.n=3, .* 8 workers .* got 9",
        ),
        (
            (*GPUS, "actor_rollout_ref.actor.ulysses_sequence_parallel_size=3"),
            r"ulysses_sequence_parallel_size=3 devices share a row, and the 8 devices",
        ),
    ],
)
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
