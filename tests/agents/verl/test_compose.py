from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from turntree.agents.verl.compose import HIDDEN, compose, fields_of, list_configs, verl_defaults
from turntree.agents.verl.sections import ConfigError
from turntree.envs import list_envs


@pytest.mark.parametrize("name", list_configs())
def test_every_shipped_configuration_is_known_to_verl(name: str, tiny_model: Path) -> None:
    composition = compose(name, [f"actor_rollout_ref.model.path={tiny_model}"])
    assert composition.settings.env in list_envs()
    engine = composition.choice.engine.removesuffix("_cpu")
    assert composition.verl.actor_rollout_ref.rollout.name == {"local": "turntree"}.get(engine, engine)
    assert composition.verl.trainer.total_training_steps > 0
    OmegaConf.resolve(composition.verl)


def test_what_a_configuration_does_not_say_is_verls_default(tiny_model: Path) -> None:
    composition = compose("demo", [f"actor_rollout_ref.model.path={tiny_model}"])
    assert composition.verl.actor_rollout_ref.actor.optim.betas == [0.9, 0.999]


def test_overrides_go_over_the_configuration(tiny_model: Path) -> None:
    composition = compose(
        "demo",
        [
            f"actor_rollout_ref.model.path={tiny_model}",
            "turntree.train_tasks=64",
            "turntree.env_kwargs.max_numbers=3",
            "data.train_batch_size=2",
            "trainer.logger=[console,file]",
            "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation=null",
        ],
    )
    assert composition.settings.train_tasks == 64
    assert composition.settings.env_kwargs["max_numbers"] == 3
    assert composition.settings.env_kwargs["tool_format"] == "compact"
    assert composition.verl.data.train_batch_size == 2
    assert composition.verl.trainer.logger == ["console", "file"]
    assert composition.verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_batch_sizes=2", "unknown key 'train_batch_sizes' in data; did you mean 'train_batch_size'"),
        ("trainr.logger=[file]", "unknown key 'trainr' in verl; did you mean 'trainer'"),
        (
            "actor_rollout_ref.actor.optim.learning_rate=1",
            "unknown key 'learning_rate' in actor_rollout_ref.actor.optim",
        ),
        ("turntree.train_task=3", "unknown key 'train_task' in turntree; did you mean 'train_tasks'"),
        ("turntree.val_tasks=0", "val_tasks must be at least 1, got 0"),
        ("turntree.reuse.mode=lenient", r"turntree\.reuse: mode lenient needs preset"),
        ("turntree.reuse.mod=exact", r"unknown key 'mod' in turntree\.reuse; did you mean 'mode'"),
        ("turntree.memo_results=-1", "memo_results must not be negative"),
        ("turntree.rewards={anser: 1}", "no reward is called 'anser'; did you mean 'answer'"),
        ("turntree.rewards={answer: 1, finished: 2}", "form alone would beat a right answer"),
        ("turntree.contract=mth", "no contract for data set 'mth'"),
        ("turntree.score_in_verl=true", "agent_loop_manager_class=null reward.num_workers=1"),
        ("reward.custom_reward_function.reward_kwarg={}", "did you mean 'reward_kwargs'"),
        (
            "actor_rollout_ref.rollout.engine_kwargs.turntree.speculaton=null",
            "unknown key 'speculaton' .* did you mean 'speculation'",
        ),
        ("trainer", "an override is key=value"),
        ("data.train_batch_size=1,2", "sets one value"),
    ],
)
def test_an_override_that_cannot_be_says_what_to_do(override: str, message: str, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("demo", [f"actor_rollout_ref.model.path={tiny_model}", override])


def test_a_field_that_verls_yaml_hides_is_known(tiny_model: Path) -> None:
    key = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    composition = compose("demo", [f"actor_rollout_ref.model.path={tiny_model}", f"{key}=bf16"])
    assert OmegaConf.select(composition.verl, key) == "bf16"


def test_a_missing_model_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.model\.path=DIR"):
        compose("demo")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        compose("demo", [f"actor_rollout_ref.model.path={tmp_path}"])


def test_an_unknown_configuration_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        compose("demmo")


def test_a_file_of_ones_own_may_build_on_a_base(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: cpu\nturntree: {env: turntree/Arithmetic-v0}\ntrainer: {total_training_steps: 7}\n")
    composition = compose(str(file), [f"actor_rollout_ref.model.path={tiny_model}"])
    assert composition.verl.trainer.total_training_steps == 7
    assert composition.verl.trainer.device == "cpu"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.yaml; shipped .*demo"):
        compose("nowhere.yaml")


def test_an_unknown_base_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: cpus\n")
    with pytest.raises(ConfigError, match="did you mean 'cpu'"):
        compose(str(file))


def test_rewards_that_need_the_group_need_the_manager_that_has_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turntree.rewards import registry, reward

    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    reward("rank", group=True)(lambda samples: [0.0] * len(samples))
    asked = [f"actor_rollout_ref.model.path={tiny_model}", "turntree.rewards={answer: 1, rank: 0.5}"]
    assert compose("demo", asked).settings.rewards == {"answer": 1, "rank": 0.5}
    with pytest.raises(ConfigError, match="the rewards rank need all samples of a task"):
        compose("demo", [*asked, "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null"])


def test_what_verls_reward_function_is_given_is_known(tiny_model: Path) -> None:
    composition = compose(
        "demo",
        [
            f"actor_rollout_ref.model.path={tiny_model}",
            "reward.custom_reward_function.reward_kwargs={contract: math}",
        ],
    )
    assert composition.verl.reward.custom_reward_function.reward_kwargs.contract == "math"


def test_run_ahead_is_refused_where_nobody_plays_ahead(tiny_model: Path) -> None:
    asked = [f"actor_rollout_ref.model.path={tiny_model}", "turntree.run_ahead.enabled=true"]
    assert compose("demo", asked).settings.run_ahead == {"enabled": True}
    with pytest.raises(ConfigError, match=r"turntree\.run_ahead needs turntree's own engine .*got None"):
        compose("demo", [*asked, "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null"])
    with pytest.raises(ConfigError, match=r"turntree\.run_ahead: .*share must lie in \(0, 1\], got 0"):
        compose("demo", [*asked, "turntree.run_ahead.share=0"])


def test_a_training_is_put_together_before_anything_heavy_is_imported(tiny_model: Path) -> None:
    script = (
        "import sys\n"
        "from turntree.agents.verl.compose import compose, list_configs\n"
        "import turntree.agents.verl.launch\n"
        f"for name in list_configs(): compose(name, ['actor_rollout_ref.model.path={tiny_model}'])\n"
        "heavy = 'datasets numba pandas ray scipy sympy torch transformers verl vllm'\n"
        "print(*set(heavy.split()) & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "\n", done.stderr[-2000:]


def test_what_is_known_without_looking_is_known_to_verl() -> None:
    defaults = verl_defaults()[1]
    for path, names in HIDDEN.items():
        section = defaults
        for key in path.split("."):
            section = section[key]
        assert not set(names) & section.keys()
        if "_target_" in section:
            assert set(names) <= fields_of(section)
