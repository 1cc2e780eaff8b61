import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from interpreter import python
from omegaconf import OmegaConf
from tables import table
from tiny_llama import save_chat_llama

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.sglang.settings import settings_from_environment
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.compose import HIDDEN, Composition, compose, fields_of, verl_defaults
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings, RunSettings
from turntree.spec_tree import ForestConfig, SpecForest

Compose = Callable[..., Composition]
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.turntree"


def test_overrides_go_over_the_configuration_and_it_goes_over_verls_defaults(composed: Compose) -> None:
    ours = ("turntree.train_tasks=64", "turntree.env_kwargs.max_numbers=3", f"{ENGINE}.speculation=null")
    composition = composed(*ours, "data.train_batch_size=2", "trainer.logger=[console,file]")
    assert composition.settings.train_tasks == 64
    assert {"max_numbers": 3, "tool_format": "compact"}.items() <= composition.settings.env_kwargs.items()
    assert composition.verl.data.train_batch_size == 2
    assert composition.verl.trainer.logger == ["console", "file"]
    assert composition.verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation is None
    assert composition.verl.actor_rollout_ref.actor.optim.betas == [0.9, 0.999]


@pytest.mark.parametrize(("override", "message"), table(__file__, "wrong_overrides"))
def test_an_override_that_cannot_be_says_what_to_do(override: str, message: str, composed: Compose) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(override)


def test_a_module_that_lacks_a_module_itself_is_on_the_path(composed, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking.py").write_text("import no_such_module")
    with pytest.raises(ConfigError, match=r"lacking:Env: No module named 'no_such_module'$"):
        composed("turntree.env=lacking:Env")


@pytest.mark.parametrize(("key", "value"), table(__file__, "hidden_fields"))
def test_a_field_that_verls_yaml_hides_is_known(key: str, value: str, composed: Compose) -> None:
    scores = ("turntree.score_in_verl=true", "reward.num_workers=1")
    assert OmegaConf.select(composed(f"{key}={value}", *scores).verl, key) == value


@pytest.mark.parametrize(("config", "overrides", "message"), table(__file__, "impossible_configurations"))
def test_a_configuration_that_cannot_be_says_what_to_do(config, overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, defaults in table(__file__, "impossible_defaults"):
        Path(f"{name}.yaml").write_text(f"defaults: {defaults}\n")
    with pytest.raises(ConfigError, match=message):
        compose(config, overrides)


def test_a_file_of_ones_own_may_name_its_machine(composed: Compose) -> None:
    mine = "defaults: [turntree_trainer, {override device: gpu}, {override engine: vllm}, _self_]\ntrainer: {nnodes: 7}"
    composition = composed(text=mine)
    assert (composition.verl.trainer.nnodes, composition.verl.trainer.device) == (7, "cuda")


@pytest.mark.parametrize(("section", "value", "other", "message"), table(__file__, "cannot_be_with"))
def test_what_cannot_be_with_another_setting_is_refused(section, value, other, message, composed, rank):
    override = f"turntree.{section}={{{', '.join(f'{key}: {one}' for key, one in value.items())}}}"
    assert value.items() <= composed(override).settings.played()[section].items()
    with pytest.raises(ConfigError, match=message):
        composed(override, *other)


def test_a_training_is_put_together_before_anything_heavy_is_imported(tiny_model: Path) -> None:
    script = table(__file__, "composes_all").replace("MODEL", str(tiny_model))
    done = python("-c", script)
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


@pytest.mark.parametrize(("kind", "values", "message"), table(__file__, "impossible_settings"))
def test_what_cannot_be_set_names_its_section_and_the_nearest(kind: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        {"engine": EngineSettings, "run": RunSettings}[kind].parse(values)


def test_the_engine_gets_what_verl_decides_and_what_is_set_here() -> None:
    settings = EngineSettings.parse({"threads": 1, "speculation": {"max_nodes": 3}})
    verls = {"max_batch": 7, "max_context": 99, "dtype": "bfloat16", "seed": 5}
    config = settings.engine_config(**verls, device="cuda")
    assert verls.items() <= asdict(config).items()
    assert (config.threads, config.speculation.max_nodes, config.device) == (1, 3, "cuda")
    assert EngineSettings.parse({"device": "cpu"}).engine_config(**verls, device="cuda").device == "cpu"
    assert EngineSettings.parse({"forest": {"end_tokens": [2, 7]}}).forest.end_tokens == frozenset({2, 7})
    given = (None, {"speculation": {}}, {"speculation": {"chain": True}})
    assert [EngineSettings.parse(one).speculation.chain for one in given] == [False, False, True]
    assert EngineSettings.parse({"speculation": None}).speculation is None


def test_reuse_is_off_until_a_run_asks_for_it() -> None:
    assert RunSettings.parse(None).reuse.mode is ReuseMode.NONE
    settings = RunSettings.parse({"turntree": {"reuse": {"mode": "spec_rl", "preset": "ppo", "top_k": 8}}})
    assert (settings.reuse.mode, settings.reuse.top_k) == (ReuseMode.SPEC_RL, 8)
    assert RunSettings.parse({"other": {"x": 1}}).path is None
    assert RunSettings.parse(None).path is None


def test_variables_of_the_template_are_one_in_turntree_and_verl(composed: Compose, chatml: Any, tmp_path: Path) -> None:
    tokenizer = copy.deepcopy(chatml)
    tokenizer.chat_template += "{% if enable_thinking %}{{ style }}<think>{% endif %}"
    model = save_chat_llama(tmp_path / "thinks", tokenizer)
    ours = (f"actor_rollout_ref.model.path={model}", "template={enable_thinking: false}", "max_thinking_tokens=4")
    composition = composed(*ours, "data.apply_chat_template_kwargs={style: brief, enable_thinking: true}")
    named = {"style": "brief", "enable_thinking": False}
    assert composition.settings.template == composition.verl.data.apply_chat_template_kwargs == named
    assert RunSettings.parse({"turntree": composition.settings.played()}).rendering == {
        "template_options": named,
        "max_thinking_tokens": 4,
    }
    for override, message in (
        ("template={enable_thinkin: false}", "reads no variable 'enable_thinkin'"),
        ("data.apply_chat_template_kwargs={shout: 1}", "reads no variable 'shout'"),
    ):
        with pytest.raises(ConfigError, match=message):
            composed(ours[0], override)
    with pytest.raises(ConfigError, match="has no thoughts"):
        composed("max_thinking_tokens=4")


@pytest.mark.parametrize("engine", ["local", "vllm", "sglang"])
def test_a_store_of_another_run_reaches_the_store_of_every_engine(engine, composed, tiny_model, tmp_path, monkeypatch):
    ours, theirs = (SpecForest(ForestConfig(tokenizer=of)) for of in (tokenizer_hash(str(tiny_model)), "0123"))
    ours.save(tmp_path / "ours.npz")
    theirs.save(tmp_path / "theirs.npz")
    monkeypatch.chdir(tmp_path)
    device = "cpu" if engine == "local" else "gpu"
    mine = f"defaults: [turntree_trainer, {{override device: {device}}}, {{override engine: {engine}}}, _self_]"
    given = composed("turntree.import_turns=ours.npz", text=mine).verl
    assert store_settings(given, engine).import_turns == str(tmp_path / "ours.npz")
    assert store_settings(composed(text=mine).verl, engine).import_turns == ""
    bad = {"theirs.npz": "turns of 0123", "gone": "No such file", "'~nobody-of-that-name/x'": "home directory"}
    for store, message in bad.items():
        override = f"turntree.import_turns={store}"
        with pytest.raises(ConfigError, match=message):
            composed(override, text=mine)
    with pytest.raises(ConfigError, match="speculation=none drafts nothing"):
        composed("turntree.import_turns=ours.npz", "speculation=none", text=mine)


def store_settings(config: Any, engine: str) -> ForestConfig:
    given = config.actor_rollout_ref.rollout.engine_kwargs
    if engine == "vllm":
        return DrafterSettings.from_additional_config(OmegaConf.to_container(given.vllm.additional_config)).forest
    if engine == "sglang":
        variables = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars)
        return settings_from_environment(variables).forest
    return EngineSettings.parse(plain(given.get("turntree"))).forest
