from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from combinations import every_third
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from tables import table
from tiny_llama import save_chat_llama

from turntree.agents.engines.sglang.config import KEPT
from turntree.agents.engines.sglang.settings import VARIABLE, graph_sizes, settings_from_environment
from turntree.agents.engines.vllm.settings import DRAFTER, DrafterSettings
from turntree.agents.resuming.resume_config import ResumeConfig
from turntree.agents.verl.config.compose import Composition, compose
from turntree.agents.verl.config.groups import Choice, list_configs, list_options, offered
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings
from turntree.agents.verl.names import replica_count
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.start import find_problems
from turntree.envs.registry import find_creator

Compose = Callable[..., Composition]
SECTIONS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic", "algorithm")


def covering(choices: Iterable[Choice], together: int) -> list[Choice]:
    # A few choices in which every ``together`` compatible options meet; of pairs, one is the engine.
    def meeting(choice: Choice) -> set[tuple[tuple[str, str], ...]]:
        met = itertools.combinations(choice.options, together)
        return {options for options in met if together > 2 or "engine" in dict(options)}

    sets = {choice: meeting(choice) for choice in choices}
    left = set().union(*sets.values())
    few = []
    while left:
        few.append(max(sets, key=lambda choice: len(sets[choice] & left)))
        left -= sets[few[-1]]
    return few


def third(rows: Iterable[Any]) -> list[Any]:
    # Two rows in three only run before a release.
    return [pytest.param(row, marks=[pytest.mark.release] if index % 3 else []) for index, row in enumerate(rows)]


def put_together(choice: Choice, composed: Compose) -> Composition:
    groups = ("engine", "size", "env", "algorithm", "mode", "reuse")
    single = (f"{group}={getattr(choice, group)}" for group in groups)
    return composed(*single, f"speculation=[{','.join(choice.speculation)}]", config=None)


def require_valid(composition: Composition) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = composition.verl
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


@pytest.mark.parametrize("choice", third(covering(offered(), together=2)), ids=lambda choice: choice.name)
def test_verl_accepts_what_is_offered(choice: Choice, composed: Compose) -> None:
    composition = put_together(choice, composed)
    assert composition.choice == choice
    require_valid(composition)


@pytest.mark.parametrize("name", third(list_configs()))
def test_verl_accepts_what_is_shipped_by_name(name: str, composed: Compose) -> None:
    composition = composed(config=name)
    assert find_creator(composition.settings.env)
    engine = composition.choice.engine.removesuffix("_cpu")
    assert composition.verl.actor_rollout_ref.rollout.name == {"local": "turntree"}.get(engine, engine)
    assert composition.verl.trainer.total_training_steps > 0
    require_valid(composition)


@pytest.mark.release
def test_verl_accepts_every_three_options_that_go_together(composed: Compose) -> None:
    for choice in covering(offered(), together=3):
        require_valid(put_together(choice, composed))


LOCAL = ("engine=local", "device=gpu")
QWEN = table(__file__, "qwen")  #: shapes of Qwen2.5 by size


@pytest.mark.parametrize("size", ["0.5b", pytest.param("1.5b", marks=pytest.mark.release)])
def test_turntrees_engine_gives_its_memory_to_the_trainer_on_a_gpu(size: str) -> None:
    config = compose(None, [*LOCAL, f"size={size}", "speculation=[tree,run_ahead]", "reuse=same_seed"]).verl
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.name, rollout.dtype, rollout.free_cache_engine) == ("turntree", "bfloat16", True)
    assert (config.trainer.device, config.trainer.n_gpus_per_node) == ("cuda", 1)
    during = "turntree.run_ahead.during_update=true"
    with pytest.raises(ConfigError, match="free_cache_engine=false, got turntree, which gives its memory"):
        compose(None, [*LOCAL, f"size={size}", "speculation=[tree,run_ahead]", during])


@cache
def bytes_of(size: str) -> tuple[int, int]:
    # Bytes of a policy's weights, and of a token's keys and values.
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from turntree.agents.engines.local.forward.model import Policy

    with torch.device("meta"):
        policy = Policy(Qwen2ForCausalLM(Qwen2Config(**QWEN[size])).bfloat16())
    return policy.weight_bytes, policy.token_bytes()


def fitted(size: str, env: str, of: str) -> tuple[int, int]:
    # Concurrent requests and stored turns of a size, with the shapes of ``of``.
    rollout = compose(None, [*LOCAL, f"size={size}", f"env={env}"]).verl.actor_rollout_ref.rollout
    config = EngineSettings.parse(OmegaConf.to_container(rollout.engine_kwargs.turntree)).engine_config(
        max_batch=rollout.max_num_seqs,
        max_context=rollout.prompt_length + rollout.response_length,
        dtype=rollout.dtype,
        seed=0,
        device="cuda",
    )
    weights, token = bytes_of(of)
    bound = replace(config, memory_bytes=int(rollout.gpu_memory_utilization * 80e9))
    found = bound.fitted(weights=weights, token=token)
    assert weights + token * found.slots * found.columns <= 40e9
    return found.max_batch, found.slots - found.max_batch


@pytest.mark.parametrize(("size", "env"), every_third(["0.5b", "1.5b"], list_options("env")))
def test_a_size_of_turntrees_engine_has_room_on_half_of_a_gpu(size: str, env: str) -> None:
    batch, _ = fitted(size, env, of=size)
    assert batch >= 128


def test_a_model_that_is_too_large_is_seen() -> None:
    # Control.
    assert fitted("1.5b", "airline", of="7b")[0] < 64
    with pytest.raises(ValueError, match="do not fit in 40,000,000,000 bytes"):
        fitted("1.5b", "airline", of="32b")


def test_a_combination_that_verl_refuses_is_seen(composed: Compose) -> None:
    broken = composed(config=None)
    broken.verl.actor_rollout_ref.actor.loss_agg_mode = "token-means"
    with pytest.raises(InstantiationException, match="Invalid loss_agg_mode"):
        require_valid(broken)


CPU = ["engine=vllm_cpu", "size=tiny", "env=arithmetic", "actor_rollout_ref.model.path=some/model"]
GPU = ["engine=vllm", "size=1.5b", "env=gsm8k"]
SGLANG = ["engine=sglang", "size=1.5b", "env=gsm8k"]
ROLLOUT = "actor_rollout_ref.rollout"
SECTION = f"{ROLLOUT}.engine_kwargs.turntree"
DRAFTS = [
    f"{SECTION}.speculation.max_nodes=5",
    f"{SECTION}.speculation.min_probability=0.2",
    f"{SECTION}.speculation.adaptive=false",
    f"+{SECTION}.forest.rollouts_per_state=7",
]


def verls(engine_options: list[str], *overrides: str) -> Any:
    # verl's configuration; do not modify it.
    return _verls(*engine_options, *overrides)


@cache
def _verls(*overrides: str) -> Any:
    return compose(None, overrides).verl


def arguments(config: Any) -> dict[str, Any]:
    rollout = config.actor_rollout_ref.rollout
    given: dict[str, Any] = OmegaConf.to_container(rollout.engine_kwargs[rollout.name])
    return given


@pytest.mark.parametrize("engine_options", [CPU, GPU])
def test_the_drafter_is_put_into_vllms_own_arguments(engine_options: list[str]) -> None:
    config = verls(engine_options, *DRAFTS)
    given = arguments(config)
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.name, rollout.get("enable_sleep_mode")) == ("vllm", None if engine_options is GPU else False)
    wanted = {"model": DRAFTER, "method": "custom_class", "num_speculative_tokens": 5}
    assert wanted.items() <= given["speculative_config"].items()
    settings = DrafterSettings.from_additional_config(given["additional_config"])
    assert (settings.min_probability, settings.adaptive, settings.forest.rollouts_per_state) == (0.2, False, 7)


def test_the_worker_takes_the_place_of_sglangs_ngram() -> None:
    config = verls(SGLANG, *DRAFTS)
    wanted = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 6, "page_size": 1}
    assert wanted.items() <= arguments(config).items()
    settings = settings_from_environment(config.ray_kwargs.ray_init.runtime_env.env_vars)
    assert settings.replace_ngram
    assert settings.forest.rollouts_per_state == 7


@pytest.mark.parametrize("speculation", ["none", "tree"])
@pytest.mark.parametrize(("engine_options", "kept"), [(CPU, 0), (GPU, 0), (SGLANG, KEPT)])
def test_an_engine_has_the_context_of_the_longest_episode(
    engine_options: list[str], kept: int, speculation: str
) -> None:
    config = verls(engine_options, f"speculation={speculation}")
    longest = config.data.max_prompt_length + config.data.max_response_length
    assert config.actor_rollout_ref.rollout.max_model_len == longest + kept
    assert arguments(config).get("context_length") == (longest + kept if kept else None)
    own = verls(engine_options, f"{ROLLOUT}.max_model_len=9000").actor_rollout_ref.rollout
    assert (own.max_model_len, own.engine_kwargs.sglang.get("context_length", 9000)) == (9000, 9000)


@pytest.mark.parametrize("engine_options", [GPU, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize(("model", "context"), [(2304, 2304), (4000, None)])
def test_a_context_is_never_beyond_the_models_own(engine_options, model, context, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": model}))
    fits = verls(engine_options, f"actor_rollout_ref.model.path={tmp_path}")
    longest = fits.data.max_prompt_length + fits.data.max_response_length
    assert longest == 2304
    kept = KEPT if engine_options is SGLANG else 0
    assert fits.actor_rollout_ref.rollout.max_model_len == (context or longest + kept)


def test_sglang_captures_few_batch_sizes_with_drafts_and_what_is_given_in_its_words_stays() -> None:
    own = f"{ROLLOUT}.engine_kwargs.sglang"
    assert arguments(verls(SGLANG, f"{own}.cuda_graph_max_bs=256"))["cuda_graph_bs"] == graph_sizes(256)
    assert arguments(verls(SGLANG, f"+{own}.cuda_graph_bs=[3]"))["cuda_graph_bs"] == [3]
    assert "cuda_graph_bs" not in arguments(verls(SGLANG, "speculation=none"))
    rollout = verls(SGLANG, f"{ROLLOUT}.engine_kwargs.sglang.context_length=9000").actor_rollout_ref.rollout
    assert (rollout.max_model_len, rollout.engine_kwargs.sglang.context_length) == (9000, 9000)


def test_an_adapter_beside_graphs_of_two_widths_is_refused_before_the_start() -> None:
    adapter = "actor_rollout_ref.model.lora_rank=8"
    with pytest.raises(ConfigError, match=r"graphs of one width, .*lora\.merge=true, speculation=none or"):
        verls(SGLANG, adapter)
    for way in ("actor_rollout_ref.model.lora.merge=true", f"{ROLLOUT}.enforce_eager=true", "speculation=none"):
        verls(SGLANG, adapter, way)
    verls(GPU, adapter)


@pytest.mark.parametrize("engine_options", [CPU, GPU, SGLANG])
def test_without_speculation_an_engine_is_left_as_it_is(engine_options: list[str]) -> None:
    config = verls(engine_options, "speculation=none")
    assert not {"speculative_config", "additional_config", "speculative_algorithm"} & arguments(config).keys()
    replayed = arguments(verls(engine_options, "speculation=none", "reuse=same_seed"))
    assert not {"speculative_config", "speculative_algorithm"} & replayed.keys(), "stored turns need no drafts"
    assert OmegaConf.select(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{VARIABLE}") is None


@pytest.mark.parametrize("reuse", ["same_seed", "rejection_sampling", "spec_rl"])
def test_vllm_gives_the_log_probabilities_that_reuse_needs(reuse: str) -> None:
    assert arguments(verls(CPU, f"reuse={reuse}"))["max_logprobs"] == -1
    assert "max_logprobs" not in arguments(verls(CPU, "speculation=tree"))
    with pytest.raises(ConfigError, match="routed experts are not known"):
        verls(CPU, f"reuse={reuse}", f"{ROLLOUT}.enable_rollout_routing_replay=true")
    with pytest.raises(ConfigError, match="logprobs_mode=processed_logprobs, got raw_logprobs"):
        verls(CPU, f"reuse={reuse}", f"{ROLLOUT}.logprobs_mode=raw_logprobs")


@pytest.mark.parametrize("drafts", ["none", "tree"])
def test_run_ahead_has_priorities_with_every_engine(drafts: str) -> None:
    ahead, without = [[f"speculation=[{drafts}{also}]", "reuse=same_seed"] for also in (",run_ahead", "")]
    policies = [verls(CPU, *ways).actor_rollout_ref.rollout.scheduling_policy for ways in (ahead, without)]
    assert policies == ["priority", "fcfs"]
    wanted = {"enable_priority_scheduling": True, "default_priority_value": 0}
    assert wanted.items() <= arguments(verls(SGLANG, *ahead)).items()
    assert not wanted.keys() & arguments(verls(SGLANG, *without)).keys()


@pytest.mark.parametrize(("engine", "override", "message"), table(__file__, "kept_from_running_ahead"))
def test_what_keeps_an_engine_from_running_ahead_is_refused(engine: str, override: str, message: str) -> None:
    engine_options = {"vllm": CPU, "sglang": SGLANG}[engine]
    with pytest.raises(ConfigError, match=message):
        verls(engine_options, "speculation=[tree,run_ahead]", override)


def test_coupled_validations_need_of_vllm_what_reuse_needs() -> None:
    coupled = "turntree.validation.coupled=true"
    assert arguments(verls(CPU, "speculation=tree", coupled))["max_logprobs"] == -1
    for engine_options in (CPU, SGLANG):
        with pytest.raises(ConfigError, match=f"{coupled} begins turns .* routed experts are not known"):
            verls(engine_options, "speculation=tree", coupled, f"{ROLLOUT}.enable_rollout_routing_replay=true")


@pytest.mark.parametrize("engine_options", [CPU, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize(("override", "message"), table(__file__, "impossible_overrides"))
def test_what_does_not_go_together_is_refused(engine_options: list[str], override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verls(engine_options, override)


@pytest.mark.parametrize("engine_options", [CPU, SGLANG], ids=["vllm", "sglang"])
def test_draft_sharing_is_set_and_switched_off_with_every_engine(engine_options: list[str]) -> None:
    on, off = (verls(engine_options, f"{SECTION}.sharing{value}") for value in (".replicas_per_task=1", "=null"))
    assert on.actor_rollout_ref.rollout.engine_kwargs.turntree.sharing
    assert off.actor_rollout_ref.rollout.engine_kwargs.turntree.sharing is None
    with pytest.raises(ConfigError, match="did you mean 'replicas_per_task'"):
        verls(engine_options, f"{SECTION}.sharing.replica_per_task=1")


@pytest.mark.parametrize(
    ("engine_options", "key", "drafter"),
    [
        (CPU, "vllm.speculative_config", "{method: ngram, num_speculative_tokens: 4}"),
        (SGLANG, "sglang.speculative_algorithm", "EAGLE"),
    ],
)
def test_another_drafter_goes_alone(engine_options: list[str], key: str, drafter: str) -> None:
    override = f"{ROLLOUT}.engine_kwargs.{key}={drafter}"
    with pytest.raises(ConfigError, match="speculation=none"):
        verls(engine_options, override)
    config = verls(engine_options, override, "speculation=none")
    assert OmegaConf.select(config, f"{ROLLOUT}.engine_kwargs.{key}") == OmegaConf.create(f"x: {drafter}").x


@pytest.mark.parametrize(
    ("name", "overrides", "drafter", "experiment"),
    [
        ("grpo_gsm8k_vllm", [], DRAFTER, "grpo_gsm8k_vllm"),
        ("grpo_arithmetic_vllm_cpu", [CPU[-1]], DRAFTER, "grpo_arithmetic_vllm_cpu"),
        ("grpo_gsm8k_sglang", [], "NGRAM", "grpo_gsm8k_1.5b_sglang_tree"),
    ],
)
def test_the_shipped_configurations_have_the_drafts_on(name, overrides, drafter, experiment):
    config = compose(name, overrides).verl
    given = arguments(config)
    assert given.get("speculative_algorithm", given.get("speculative_config", {}).get("model")) == drafter
    assert config.trainer.experiment_name == experiment


@pytest.mark.parametrize(("overrides", "message"), table(__file__, "refused_with_separate_rollouts"))
def test_what_separate_rollouts_cannot_be_used_with_is_refused(overrides: list[str], message: str) -> None:
    separate = ["mode=separate_async", "actor_rollout_ref.model.path=some/model"]
    with pytest.raises(ConfigError, match=message):
        compose(None, [*separate, *overrides])
    assert replica_count(compose(None, separate).verl) == 1


def test_vllm_reverifies_turns_only_if_the_weights_change_during_episodes() -> None:
    options = ["engine=vllm_cpu", "actor_rollout_ref.model.path=some/model", "turntree.asynchronous.on_resume=turn"]
    settings = compose(None, [*options, "mode=colocate_async", "turntree.seeded=false"]).settings
    assert settings.played()["asynchronous"] == {"on_resume": "turn", "in_order": True}
    assert settings.draws_by_seed
    assert "asynchronous" not in compose(None, options).settings.played(), "the control: nothing is interrupted"
    with pytest.raises(ConfigError, match=r"manager of episodes, as mode=colocate_async sets it, and rollout.name="):
        compose(None, [*options, "mode=colocate_async", "actor_rollout_ref.rollout.name=trtllm"])


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
@pytest.mark.parametrize("engine", ["local", "vllm_cpu", "vllm", "sglang"])
def test_every_engine_goes_on_while_the_policy_is_updated(mode: str, engine: str) -> None:
    device = "cpu" if engine in ("local", "vllm_cpu") else "gpu"
    options = [f"device={device}", f"engine={engine}", f"mode={mode}", "actor_rollout_ref.model.path=some/model"]
    composed = compose(None, options)
    assert composed.settings.asynchronous == ResumeConfig()
    assert composed.verl.actor_rollout_ref.hybrid_engine == (mode == "colocate_async")


PAGE = Path(__file__).parents[4] / "docs" / "training.md"


class Combination(NamedTuple):
    # A row of the page's table of supported combinations.
    name: str
    keys: list[str]
    state: str
    drafts: str


def combinations() -> list[Combination]:
    lines = PAGE.read_text(encoding="utf-8").partition("<!-- combinations -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()[3:]]
    return [Combination(name, shlex.split(keys.strip("`")), state, drafts) for name, keys, state, drafts in rows]


def start_of(keys: Iterable[str], model: Path) -> Composition:
    composition = compose(None, [f"actor_rollout_ref.model.path={model}", "env=arithmetic", *keys])
    if problems := find_problems(composition, RunFolder(model / "none")):
        raise problems[0]
    return composition


@pytest.fixture(scope="module")
def model(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_llama(tmp_path_factory.mktemp("model"), chatml, positions=8192)


@pytest.mark.parametrize("row", combinations(), ids=lambda row: row.name)
def test_what_the_page_says_of_a_combination_is_so(row: Combination, model: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("flash_attn", "flash_attn.bert_padding"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    if row.state == "refused":
        assert not row.drafts
        with pytest.raises(ConfigError) as refused:
            start_of(row.keys, model)
        assert "\n" not in str(refused.value)
        return
    named = re.fullmatch(r"runs: `(\S+)::(\S+)`|composes", row.state)
    assert named, "runs, composes or refused"
    if named[1]:
        assert f"def {named[2]}(" in (PAGE.parents[1] / named[1]).read_text(encoding="utf-8")
    assert row.drafts in ("yes", "no")
    if row.drafts == "no":
        with pytest.raises(ConfigError, match="speculation=none"):
            start_of(row.keys, model)
    composition = start_of([*row.keys, *(["speculation=none"] if row.drafts == "no" else [])], model)
    section = composition.verl.actor_rollout_ref.rollout.engine_kwargs.turntree
    assert (EngineSettings.parse(plain(section)).speculation is not None) is (row.drafts == "yes")
    for name in ("flash_attn", "flash_attn.bert_padding"):
        monkeypatch.delitem(sys.modules, name)
    from verl.utils.config import omega_conf_to_dataclass

    OmegaConf.resolve(composition.verl)
    for part in SECTIONS:
        omega_conf_to_dataclass(OmegaConf.select(composition.verl, part))


def test_the_table_of_combinations_has_each_state() -> None:
    states = Counter(row.state.partition(":")[0] for row in combinations())
    assert states.keys() == {"runs", "composes", "refused"}
    assert min(states.values()) > 5
