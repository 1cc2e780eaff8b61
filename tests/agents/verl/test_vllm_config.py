"""Configurations of training with vLLM: they compose, and verl's and vLLM's own settings take them."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from turntree.agents.engines.vllm.settings import DRAFTER, DrafterSettings
from turntree.agents.verl.compose import compose
from turntree.agents.verl.sections import ConfigError

CPU = ["engine=vllm_cpu", "size=tiny", "env=arithmetic", "actor_rollout_ref.model.path=some/model"]
GPU = ["engine=vllm", "size=1.5b", "env=gsm8k"]
SECTION = "actor_rollout_ref.rollout.engine_kwargs.turntree"


def rollout(*overrides: str, base: list[str] = CPU) -> Any:
    return compose(None, [*base, *overrides]).verl.actor_rollout_ref.rollout


@pytest.mark.parametrize("base", [CPU, GPU])
def test_the_drafter_is_put_into_vllms_own_arguments(base: list[str]) -> None:
    config = rollout(base=base)
    arguments = config.engine_kwargs.vllm
    assert config.name == "vllm"
    assert arguments.speculative_config.model == DRAFTER
    assert arguments.speculative_config.method == "custom_class"
    DrafterSettings.from_additional_config(OmegaConf.to_container(arguments.additional_config))


@pytest.mark.parametrize("base", [CPU, GPU])
def test_without_speculation_vllm_is_left_as_it_is(base: list[str]) -> None:
    arguments = rollout("speculation=none", base=base).engine_kwargs.vllm
    assert "speculative_config" not in arguments
    assert "additional_config" not in arguments


def test_how_much_is_drafted_is_said_once_for_all_engines() -> None:
    arguments = rollout(
        f"{SECTION}.speculation.max_nodes=5",
        f"{SECTION}.speculation.min_probability=0.2",
        f"{SECTION}.speculation.adaptive=false",
        f"+{SECTION}.forest.rollouts_per_state=7",
    ).engine_kwargs.vllm
    settings = DrafterSettings.from_additional_config(OmegaConf.to_container(arguments.additional_config))
    assert arguments.speculative_config.num_speculative_tokens == 5
    assert (settings.min_probability, settings.adaptive, settings.forest.rollouts_per_state) == (0.2, False, 7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("turntree.reuse.mode=exact", "reuse.mode=exact needs turntree's own engine"),
        (f"{SECTION}.threads=2", "threads is a setting of turntree's own engine"),
        (f"{SECTION}.speculation.leader_first=true", "leader_first needs turntree's own engine"),
        (f"{SECTION}.speculation.max_nods=2", "did you mean 'max_nodes'"),
        ("actor_rollout_ref.rollout.enforce_eagre=true", "did you mean 'enforce_eager'"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={method: ngram}", "speculation=none"),
        ("actor_rollout_ref.model.mtp={enable: true, enable_rollout: true}", "drafts of the model's own"),
    ],
)
def test_what_does_not_go_together_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(None, [*CPU, override])


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("grpo_gsm8k_vllm", []), ("grpo_arithmetic_vllm_cpu", ["actor_rollout_ref.model.path=some/model"])],
)
def test_the_shipped_configurations_have_the_drafter_on(name: str, overrides: list[str]) -> None:
    config = compose(name, overrides).verl
    assert config.actor_rollout_ref.rollout.name == "vllm"
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.model == DRAFTER
    assert config.trainer.experiment_name == name


def test_another_drafter_goes_alone() -> None:
    named = "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={method: ngram, num_speculative_tokens: 4}"
    assert rollout(named, "speculation=none").engine_kwargs.vllm.speculative_config.method == "ngram"


@pytest.mark.parametrize("base", [CPU, GPU])
def test_verls_own_settings_take_the_rollout(base: list[str]) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    config = rollout(base=base)
    OmegaConf.resolve(config)
    settings = omega_conf_to_dataclass(config)
    assert settings.name == "vllm"
    assert settings.engine_kwargs["vllm"]["speculative_config"]["model"] == DRAFTER
    assert settings.enable_sleep_mode is (base is GPU)
