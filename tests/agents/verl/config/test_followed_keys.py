import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from omegaconf import OmegaConf
from tables import table
from upstream import upstream

from turntree.agents.verl.config.checks import _leaves, key_rows, row_of
from turntree.agents.verl.config.compose import compose, fields_of, verl_defaults
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.names import REPLICA_SIZES
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.start import complete

BY_ROWS = {
    f"{key}_micro_batch_size_per_gpu": 1
    for key in ("actor_rollout_ref.actor.ppo", "actor_rollout_ref.rollout.log_prob", "critic.ppo")
} | {"actor_rollout_ref.actor.use_dynamic_bsz": False, "critic.use_dynamic_bsz": False}
#: trainings that together follow most keys: one has a critic and a reference policy
BASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vllm": ({"engine": "vllm", "size": "7b", "algorithm": "ppo"}, {}),
    "local": (
        {"engine": "local", "size": "tiny", "algorithm": "grpo", "mode": "separate_async"},
        {**BY_ROWS, "ray_kwargs.ray_init.num_gpus": 8},
    ),
}
#: keys that decide about other keys; the trainings here and in test_configs.py set them
STEERING = (
    *("actor_rollout_ref.rollout.name", "trainer.v1.trainer_mode", "trainer.device", "actor_rollout_ref.hybrid_engine"),
    *("algorithm.rollout_correction.bypass_mode", "algorithm.filter_groups.enable", "critic.use_dynamic_bsz"),
    *("actor_rollout_ref.actor.use_dynamic_bsz", "actor_rollout_ref.rollout.checkpoint_engine.backend"),
)
#: sections of which verl builds a dataclass from any values; its reward and distillation need more
BUILT = (
    *("actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout", "actor_rollout_ref.model"),
    *("critic", "algorithm", "trainer.v1.separate_async.hybrid_rollout", "skip"),
)

#: keys that must be 1 with turntree's engine
ONE_DEVICE = {f"actor_rollout_ref.rollout.{name}" for name in (*REPLICA_SIZES, "expert_parallel_size")}


class Changed(NamedTuple):
    values: dict[str, Any]  #: of each followed key
    composed: Any  #: verl's configuration, as saved for verl


def other(key: str, value: Any, takes: tuple[Any, ...], model: str) -> Any:
    # A value that the key does not have; a table has values for keys that verl's classes check.
    named = {name: one for name, one in table(__file__, "other_values").items() if f".{key}".endswith(f".{name}")}
    if named:
        found = named[max(named, key=len)]
        return model if found == "MODEL" else found
    if takes:
        return next((one for one in takes if one != value), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, "other"]
    return {**value, "other": 7} if isinstance(value, dict) else "other"


def hidden(section: dict[str, Any], above: str = "") -> list[str]:
    # Fields of verl's dataclasses that its YAML lacks, except profilers.
    names = [name for name in fields_of(section) - section.keys() if name != "custom"]  # which the run's settings fill
    inner = [(key, one) for key, one in section.items() if isinstance(one, dict) and key != "profiler"]
    return [f"{above}{name}" for name in names] + [key for part, one in inner for key in hidden(one, f"{above}{part}.")]


@pytest.fixture(scope="module", params=BASES)
def changed(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    # A training in which every followed key has a changed value.
    options, steering = BASES[request.param]
    options = {**options, "env": "arithmetic", "speculation": ["none"]}
    words = [f"{group}={name}".replace("'", "") for group, name in options.items()]
    words += [f"{key}={str(value).lower()}" for key, value in steering.items()]
    model = f"actor_rollout_ref.model.path={tiny_model}"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("flash_attn", "flash_attn.bert_padding"):  # else a composition leaves it out
            patch.setitem(sys.modules, name, ModuleType(name))
        before = compose(None, [*words, model])

        def value_of(key: str) -> Any:
            section, _, name = key.partition(".")
            return getattr(before.settings, name) if section == "turntree" else OmegaConf.select(before.verl, key)

        values = {}
        defaults = verl_defaults()[1]
        for key, default in [*_leaves(defaults), *((key, None) for key in hidden(defaults) if key.startswith(BUILT))]:
            row = row_of(key, value_of)
            if row is None or row.fate not in ("followed", "unsupported") or key in STEERING or "_target_" in key:
                continue
            if options["engine"] == "local" and key in ONE_DEVICE:
                continue
            if not (isinstance(default, str) and OmegaConf.is_dict(value_of(key))):  # a section by its other name
                values[key] = other(key, plain(value_of(key)), row.takes, str(tiny_model))
        values = {key: value for key, value in values.items() if value is not None}
        own = OmegaConf.create({"defaults": ["turntree_trainer"]})
        own.defaults += [{f"override {group}": name} for group, name in options.items()]
        own.defaults.append("_self_")
        for key, value in (steering | values).items():
            OmegaConf.update(own, key, value, force_add=True)
        file = tmp_path_factory.mktemp("changed") / "changed.yaml"
        OmegaConf.save(own, file)
        composition = compose(str(file))
        complete(composition, RunFolder(file.parent))
        OmegaConf.resolve(composition.verl)  # as verl does first
    return Changed(values, composition.verl)


#: made absolute, and merged with DAPO's filter
WRITTEN = ("trainer.resume_from_path", "trainer.v1.sampler.sampler_kwargs")


def test_every_followed_key_arrives_in_what_verl_is_started_with(changed: Changed) -> None:
    assert len(changed.values) > 500
    found = {key: plain(OmegaConf.select(changed.composed, key)) for key in changed.values if key not in WRITTEN}
    assert {key: value for key, value in found.items() if value != changed.values[key]} == {}


def missing(built: Any, section: str, values: dict[str, Any]) -> dict[str, Any]:
    # Keys of a section whose values verl's class lacks, and what it has instead.
    lost = {}
    for key, value in values.items():
        if not key.startswith(f"{section}."):
            continue
        found = built
        for part in key.removeprefix(f"{section}.").split("."):
            of_dataclass = dataclasses.is_dataclass(found)
            found = getattr(found, part, "nothing") if of_dataclass else found.get(part, "nothing")
        found = plain(found)
        if (list(found) if isinstance(found, tuple) else found) != value:
            lost[key] = found
    return lost


@pytest.mark.parametrize("section", BUILT)
def test_verls_own_classes_have_the_value_of_every_followed_key(section: str, changed: Changed) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    given = OmegaConf.select(changed.composed, section)
    if section.endswith(".ref"):  # verl's worker gives these other names before
        given = OmegaConf.masked_copy(given, [key for key in given if not str(key).startswith("log_prob_")])
        given.use_dynamic_bsz = True
    here = [key for key in changed.values if key.startswith(f"{section}.") and ".log_prob_" not in key]
    values = {key: changed.values[key] for key in here}
    assert values, "a section without a followed key"
    built = omega_conf_to_dataclass(given)
    assert missing(built, section, values) == {}


V1 = "".join(upstream(f"verl/trainer/ppo/v1/{name}.py") for name in ("trainer_base", "trainer_sync", "utils"))
FSDP = upstream("verl/workers/engine/fsdp/transformer_impl.py")


def takes(key: str) -> set[Any]:
    (row,) = (row for row in key_rows() if key in row.keys)
    return {*row.takes}


def test_upstream_still_ignores_what_is_refused_although_its_classes_have_it() -> None:
    from verl.workers.config import FSDPActorConfig, FSDPCriticConfig, FSDPEngineConfig

    assert [name for name in ("apply_bypass_mode", "sum_pi_squared", "reward_baselines", "gdpo") if name in V1] == []
    assert "rollout_log_probs" in V1, "the control"
    assert [name for name in ("router_replay", "turbo_config", "checkpoint_config.strict") if name in FSDP] == []
    assert "entropy_checkpointing" in FSDP, "the control"
    rows = {"ppo_micro_batch_size_per_gpu": 1, "ulysses_sequence_parallel_size": 2, "strategy": "fsdp2"}
    assert FSDPCriticConfig(fsdp=FSDPEngineConfig(), **rows).engine.ulysses_sequence_parallel_size == 1
    actor = FSDPActorConfig(fsdp_config=FSDPEngineConfig(), rollout_n=1, **rows)
    assert actor.engine.ulysses_sequence_parallel_size == 2


def test_the_supported_values_are_verls_own() -> None:
    import torch
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, agg_loss, kl_penalty

    import turntree.agents.verl.episodes.advantages  # noqa: F401  # registers its own

    lacking = {"remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"}
    known = {str(getattr(name, "value", name)) for name in ADV_ESTIMATOR_REGISTRY}
    assert takes("algorithm.adv_estimator") == known - lacking
    assert takes("actor_rollout_ref.actor.policy_loss.loss_mode") == {*POLICY_LOSS_REGISTRY} - {"bypass_mode"}
    ones = torch.ones(1, 2)
    for name in takes("algorithm.kl_penalty"):
        kl_penalty(ones, ones, name)
    for name in takes("critic.loss_agg_mode"):
        agg_loss(ones, ones, name)
    with pytest.raises(NotImplementedError):
        kl_penalty(ones, ones, "full")


def test_a_field_that_verls_class_does_not_have_or_has_otherwise_is_noticed() -> None:
    from verl.workers.config import FSDPEngineConfig

    given = {"fsdp.seed": 42, "fsdp.dtype": "float16", "fsdp.no_such_key": 1}
    assert missing(FSDPEngineConfig(), "fsdp", given) == {"fsdp.dtype": "bfloat16", "fsdp.no_such_key": "nothing"}
