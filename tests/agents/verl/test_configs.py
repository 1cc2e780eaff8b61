"""Every combination of options, as verl itself reads and validates it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from turntree.agents.verl.compose import Composition, list_configs
from turntree.agents.verl.groups import Choice, offered
from turntree.envs import list_envs

Compose = Callable[..., Composition]
SECTIONS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic", "algorithm")


def covering(choices: Iterable[Choice], together: int = 2) -> list[Choice]:
    """Few of the choices, in which every ``together`` options that go together meet."""
    sets = {choice: set(itertools.combinations(choice.options, together)) for choice in choices}
    left = set().union(*sets.values())
    few = []
    while left:
        few.append(max(sets, key=lambda choice: len(sets[choice] & left)))
        left -= sets[few[-1]]
    return few


def put_together(choice: Choice, composed: Compose) -> Composition:
    named = (f"engine={choice.engine}", f"size={choice.size}", f"env={choice.env}")
    return composed(
        *named, f"algorithm={choice.algorithm}", f"speculation=[{','.join(choice.speculation)}]", config=None
    )


def require_valid(composition: Composition) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = composition.verl.copy()
    OmegaConf.resolve(config)
    for section in SECTIONS:
        omega_conf_to_dataclass(OmegaConf.select(config, section))
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    assert devices % config.actor_rollout_ref.rollout.tensor_model_parallel_size == 0
    assert config.data.train_batch_size % config.actor_rollout_ref.actor.ppo_mini_batch_size == 0
    longest = config.data.max_prompt_length + config.data.max_response_length
    assert longest <= config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert need_critic(config) == (composition.choice.algorithm == "ppo")


@pytest.mark.parametrize("choice", covering(tuple(offered())), ids=lambda choice: choice.name)
def test_verl_accepts_what_is_offered(choice: Choice, composed: Compose) -> None:
    composition = put_together(choice, composed)
    assert composition.choice == choice
    require_valid(composition)


@pytest.mark.parametrize("name", list_configs())
def test_verl_accepts_what_is_shipped_by_name(name: str, composed: Compose) -> None:
    composition = composed(config=name)
    assert composition.settings.env in list_envs()
    engine = composition.choice.engine.removesuffix("_cpu")
    assert composition.verl.actor_rollout_ref.rollout.name == {"local": "turntree"}.get(engine, engine)
    assert composition.verl.trainer.total_training_steps > 0
    require_valid(composition)


@pytest.mark.release
def test_verl_accepts_every_three_options_that_go_together(composed: Compose) -> None:
    for choice in covering(tuple(offered()), together=3):
        require_valid(put_together(choice, composed))


def test_a_combination_that_verl_refuses_is_seen(composed: Compose) -> None:
    broken = composed("actor_rollout_ref.actor.loss_agg_mode=token-means", config=None)
    with pytest.raises(InstantiationException, match="Invalid loss_agg_mode"):
        require_valid(broken)
