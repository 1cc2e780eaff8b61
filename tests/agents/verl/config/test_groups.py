from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tables import table

from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.compose import Composition
from turntree.agents.verl.config.groups import GROUPS, Incompatible, compose_options, list_options, offered
from turntree.agents.verl.config.sections import ConfigError

Compose = Callable[..., Composition]


@pytest.fixture
def composed(composed: Compose) -> Compose:
    return partial(composed, config="grpo_arithmetic_cpu")


def speculation(composition: Composition) -> Any:
    return composition.verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation


def mode(composition: Composition) -> ReuseMode:
    return composition.settings.reuse.mode


@pytest.mark.parametrize("reuse", ["same_seed", "rejection_sampling", "spec_rl"])
def test_turns_are_reused_with_drafts_from_trees_and_without(composed: Compose, reuse: str) -> None:
    with_trees, without = (composed(f"speculation={drafts}", f"reuse={reuse}") for drafts in ("tree", "none"))
    assert speculation(with_trees) is not None
    assert speculation(without) is None
    assert mode(with_trees) == mode(without) == reuse


def test_the_default_drafts_from_trees_and_none_is_plain_decoding(composed: Compose) -> None:
    assert speculation(composed()) is not None
    assert mode(composed()) is ReuseMode.NONE
    plain = composed("speculation=[none]")
    assert speculation(plain) is None
    assert mode(plain) is ReuseMode.NONE
    assert (composed().choice.reuse, composed().choice.speculation) == ("none", ("tree",))
    assert composed("reuse=same_seed").choice.name == "grpo_arithmetic_small_local_tree_same_seed"


def test_a_configuration_may_name_its_reuse_and_an_override_replaces_it(composed: Compose) -> None:
    mine = "defaults: [turntree_trainer, {override reuse: spec_rl}]"
    assert mode(composed(text=mine)) is ReuseMode.SPEC_RL
    assert mode(composed("reuse=rejection_sampling", text=mine)) is ReuseMode.REJECTION_SAMPLING
    composition = composed("turntree.reuse.preset=dapo", "reuse=spec_rl")
    assert composition.settings.reuse.lenience == pytest.approx(1.1618, abs=1e-4)


def test_options_alone_make_a_training_named_after_them(composed: Compose) -> None:
    composition = composed("algorithm=dapo", "env=gsm8k", "speculation=none", "size=tiny", config="engine=local")
    assert composition.settings.env == "turntree/GSM8K-v0"
    assert composition.settings.run_dir == "runs/dapo_gsm8k_tiny_local_none"
    assert composition.verl.trainer.experiment_name == "dapo_gsm8k_tiny_local_none"
    assert composition.verl.algorithm.filter_groups.enable


def test_verls_filter_of_groups_is_that_of_turntrees_sampler(composed: Compose) -> None:
    def sampled(*overrides: str) -> dict[str, object]:
        return dict(composed(*overrides).verl.trainer.v1.sampler.sampler_kwargs)

    enable = "algorithm.filter_groups.enable"
    alone = sampled("algorithm=grpo")
    assert sampled("algorithm=dapo", f"{enable}=false") == alone == {"poll_interval": 0.1}
    groups = {"filter_groups_metric": "reward", "train_batch_size": 2, "max_inflight_gen_batches": 2}
    two = ("algorithm=dapo", "data.train_batch_size=2")
    assert sampled(*two) == {**alone, **groups, "max_num_gen_batches": 20}
    ours = "trainer.v1.sampler.sampler_kwargs.max_num_gen_batches=3"
    assert sampled(*two, "algorithm.filter_groups.metric=acc", ours)["filter_groups_metric"] == "acc"
    assert sampled(*two, ours)["max_num_gen_batches"] == 3
    assert sampled("algorithm=grpo", f"{enable}=true", "data.train_batch_size=2") == {
        **alone,
        **groups,
        "max_inflight_gen_batches": 1,
    }


def test_a_group_named_on_the_command_line_replaces_that_of_the_file(composed: Compose) -> None:
    composition = composed("algorithm=ppo")
    assert composition.verl.algorithm.adv_estimator == "gae"
    assert composition.settings.run_dir == "runs/grpo_arithmetic_cpu"
    mine = "defaults: [turntree_trainer, {override algorithm: dapo}, _self_]\n"
    mine += "actor_rollout_ref: {actor: {clip_ratio_high: 0.3}}"
    actor = composed(text=mine).verl.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.3)


def test_an_environment_of_ones_own_takes_nothing_from_the_default_one(composed: Compose) -> None:
    composition = composed(text="turntree: {env: turntree/Countdown-v0}\n")
    assert composition.choice.env is None
    assert composition.settings.env_kwargs == {}


@pytest.mark.parametrize(("defaults", "env"), table(__file__, "own_environments"))
def test_an_environment_that_a_file_names_as_an_option_stays(composed: Compose, defaults: str, env: Any) -> None:
    composition = composed("turntree.env=turntree/Countdown-v0", "turntree.env_kwargs={}", text=f"defaults: {defaults}")
    assert composition.choice.env == (env or None)


def test_a_file_may_change_a_shipped_configuration_with_options_of_its_own(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "size").mkdir()
    for batch in (16, 8):  # the second one is read again
        mine = f"# @package _global_\ndefaults: [small, _self_]\ndata: {{train_batch_size: {batch}}}"
        (tmp_path / "size" / "mine.yaml").write_text(mine)
        composition = composed(text="defaults: [grpo_gsm8k_cpu, {override size: mine}, {override algorithm: dapo}]")
        assert composition.choice.name == "dapo_gsm8k_mine_local_tree"
        assert composition.verl.data.train_batch_size == batch
        assert composition.settings.run_dir == "runs/grpo_gsm8k_cpu"


def test_what_is_done_to_a_configuration_is_not_in_the_next_one() -> None:
    first, _ = compose_options({"defaults": ["demo"]}, {})
    batch, first.data.train_batch_size = first.data.train_batch_size, 1
    second, _ = compose_options({"defaults": ["demo"]}, {})
    assert second.data.train_batch_size == batch > 1


@pytest.mark.parametrize(("overrides", "message"), table(__file__, "incompatible_options"))
def test_options_that_do_not_go_together_are_refused(composed: Compose, overrides: list[str], message: str) -> None:
    with pytest.raises(Incompatible, match=message):
        composed(*overrides[1:], config=overrides[0])


def test_every_option_is_part_of_some_combination_and_any_name_of_one_is_quoted(composed: Compose) -> None:
    met = {option for choice in offered() for option in choice.options}
    assert met >= {(group, name) for group in GROUPS for name in list_options(group)}
    with pytest.raises(ConfigError, match="unknown key '7' in speculation"):
        composed("speculation=[7]")


@pytest.mark.parametrize("option", ["same_seed", "[tree,same_seed]"])
def test_an_option_in_the_wrong_group_is_named_with_its_own(composed: Compose, option: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'same_seed' in speculation; did you mean reuse=same_seed\?"):
        composed(f"speculation={option}")


def test_a_size_of_several_nodes_is_that_of_one_but_for_what_it_says(composed: Compose) -> None:
    one, four = (composed("engine=vllm", f"size={size}", config=None).verl for size in ("32b", "32b_4nodes"))
    assert one.actor_rollout_ref.actor.optim.lr == four.actor_rollout_ref.actor.optim.lr == 1e-6
    assert (one.trainer.nnodes, four.trainer.nnodes) == (1, 4)
