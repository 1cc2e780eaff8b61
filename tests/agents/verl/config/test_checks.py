"""What verl would refuse after minutes, or take as it is, is refused before a process is started."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from turntree.agents.verl.config.checks import _FOLLOWED, COUNTS, LOOP_KEYS
from turntree.agents.verl.config.compose import compose, verl_defaults
from turntree.agents.verl.config.sections import ConfigError

MODEL = "actor_rollout_ref.model.path=some/model"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_batch_size=abc", r"data\.train_batch_size is a number, \d+ by default, got 'abc'"),
        ("data.train_batch_size=0", r"data\.train_batch_size is a whole number of at least 1, got 0"),
        ("trainer.total_training_steps=-1", r"trainer\.total_training_steps is a whole number of at least 1, got -1"),
        ("trainer.total_training_steps=1.5", r"total_training_steps is a whole number of at least 1, got 1\.5"),
        ("actor_rollout_ref.actor.optim.lr=fast", r"actor_rollout_ref\.actor\.optim\.lr is a number, .*got 'fast'"),
        ("actor_rollout_ref.actor.optim.lr=true", r"is a number, .*got True"),
        ("trainer.val_before_train=maybe", r"trainer\.val_before_train is true or false, got 'maybe'"),
        ("actor_rollout_ref.actor.optim.learning_rate=1", r"in actor_rollout_ref\.actor\.optim; did you mean 'lr'\?"),
        ("actor_rollout_ref.actor.lr=1", r"in actor_rollout_ref\.actor; did you mean 'optim\.lr'\?"),
        ("learning_rate=1", r"in verl; did you mean 'critic\.optim\.lr'\?"),
        ("speculation=[tree,replay,exact]", r"takes one of replay, exact, lenient, .* got replay and exact"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        compose("grpo_arithmetic_cpu", [MODEL, override])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.optim.lr=1",
        "trainer.total_training_steps=null",
        "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
        "speculation=[none,replay,runahead]",
    ],
)
def test_numbers_nothing_and_interpolations_are_taken(override: str) -> None:
    compose("grpo_arithmetic_cpu", [MODEL, override])


def test_every_count_is_a_key_of_verl() -> None:
    _, known = verl_defaults()
    for key in COUNTS:
        section = known
        for part in key.split(".")[:-1]:
            section = section[part]
        assert key.split(".")[-1] in section


def test_verls_flat_configuration_is_what_hydra_composes() -> None:
    from hydra import compose as composed
    from hydra import initialize_config_dir

    spec = find_spec("verl")
    assert spec is not None
    with initialize_config_dir(str(Path(spec.origin or "").parent / "trainer" / "config"), version_base=None):
        theirs = OmegaConf.to_container(composed("ppo_trainer"))
    assert kinds(theirs) == kinds(verl_defaults()[1])
    assert kinds({"a": 1}) != kinds({"a": 1.0}), "the control: equal, and of another type"


def kinds(value: Any) -> Any:
    """The value with the type of all that is in it."""
    if isinstance(value, dict):
        return {key: kinds(inner) for key, inner in value.items()}
    return [kinds(inner) for inner in value] if isinstance(value, list) else (type(value), value)


def of_verl(key: str) -> Any:
    """A value of verl's configuration, as written."""
    value: Any = verl_defaults()[1]
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("key", LOOP_KEYS)
def test_a_key_that_only_verls_own_loops_read_is_refused_by_name(key: str) -> None:
    default = of_verl(key)
    value = {bool: not default, int: 7}.get(type(default), "other")
    with pytest.raises(ConfigError) as refused:
        compose("grpo_arithmetic_cpu", [MODEL, f"{key}={value}"])
    assert key.rpartition(".")[2] in str(refused.value)
    assert str(refused.value).endswith(tuple(LOOP_KEYS.values()))


def test_every_key_of_verls_loops_is_followed_or_refused() -> None:
    keys = {f"actor_rollout_ref.rollout.multi_turn.{key}" for key in of_verl("actor_rollout_ref.rollout.multi_turn")}
    assert keys == {key for key in {*LOOP_KEYS, *_FOLLOWED} if ".multi_turn." in key}
    for key in LOOP_KEYS:
        of_verl(key)  # a KeyError if verl has it no more


def test_verls_own_loops_may_be_given_their_keys() -> None:
    loop, turns = "actor_rollout_ref.rollout.agent.default_agent_loop", "actor_rollout_ref.rollout.multi_turn"
    compose("grpo_arithmetic_cpu", [MODEL, f"{loop}=tool_agent", f"{turns}.max_assistant_turns=3"])
    compose("grpo_arithmetic_cpu", [MODEL, f"{turns}.enable=true"])
