"""Compose the whole configuration of verl's ``main_ppo``.

Later parts override earlier ones: verl's defaults, one option of every group (``groups``), the file's own keys, the
command line. A file names its options in a Hydra defaults list. Its section ``turntree`` has turntree's settings, and
its other keys override verl's. Every key is checked against verl's configuration before any process starts.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.errors import MissingExtra, RenderError, UsageError
from turntree.agents.verl.config.asynchronous import with_mode
from turntree.agents.verl.config.checks import check_counts, check_env, check_value, check_verl_keys, meant
from turntree.agents.verl.config.defaults_list import YamlLoader
from turntree.agents.verl.config.groups import GROUPS, TRAINER, Choice, check_compatible, compose_options, list_configs
from turntree.agents.verl.config.sections import ConfigError, absolute, check_keys, plain
from turntree.agents.verl.config.settings import EngineSettings, RunSettings, TrainSettings, make_scorer
from turntree.agents.verl.config.sglang_config import fit_sglang
from turntree.agents.verl.config.trainer_config import MICRO_BATCHES, fit_attention, fit_filter, fit_rows
from turntree.agents.verl.config.vllm_config import fit_vllm
from turntree.agents.verl.names import REPLICA_SIZES, ROLLOUT_NAME
from turntree.agents.yaml_files import read_yaml

_NO_MODEL = "no model is named; give its folder or Hugging Face id: --model DIR, or actor_rollout_ref.model.path=DIR"
#: sections whose keys verl does not check but passes on to engines, models or Ray
_OPEN = ("engine_kwargs", "custom", "override_config", "ray_init", "override_optimizer_config")
# Keys that verl reads but its YAML lacks, by section. ``fields_of`` finds such keys in verl's dataclasses, but has to
# import verl, which takes seconds. The keys that the shipped configurations use are therefore listed here.
HIDDEN = {
    "reward.custom_reward_function": ("reward_kwargs",),
    "actor_rollout_ref.actor.fsdp_config": ("mixed_precision",),
    "actor_rollout_ref.ref.fsdp_config": ("mixed_precision",),
    "actor_rollout_ref.rollout": ("enable_sleep_mode",),
    "actor_rollout_ref.rollout.agent": ("agent_loop_manager_class",),
    "critic": ("ppo_infer_max_token_len_per_gpu",),
    "critic.fsdp": ("mixed_precision",),
}
#: keys that the command line accepts without ``turntree.``, as other commands do
_SHORT = {name: f"turntree.{name}" for name in ("template", "max_thinking_tokens")}
# verl ships its composed configuration as one file, which lacks only ``model_engine``; Hydra takes five times as long.
_FLAT = ("trainer", "config", "_generated_ppo_trainer.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    choice: Choice  #: the chosen options
    settings: TrainSettings  #: turntree's section
    verl: DictConfig  #: verl's whole configuration, interpolations unresolved


def compose(config: str | None, overrides: Sequence[str] = ()) -> Composition:
    """Compose and check the configuration of a training.

    Args:
        config: Name of a shipped configuration, or path of a YAML file; a text with ``=`` is the first override.
            ``None`` uses only the options.
        overrides: ``key=value`` in Hydra's grammar. A group's name chooses its option (``engine=vllm``,
            ``speculation=[tree,run_ahead]``), keys with ``turntree.`` are turntree's, all others are verl's.

    Raises:
        ConfigError: If the configuration, an option, a key or a value is unknown or missing, or options are
            incompatible.
        MissingExtra: If verl or Hydra is not installed.
    """
    if config is not None and "=" in config:
        overrides, config = [config, *overrides], None
    own = _read(config or TRAINER)
    changes = _parse(overrides)
    named = {path: value for path, value in changes if path in GROUPS}
    own_env = OmegaConf.select(own, "turntree.env") is not None or "turntree.env" in dict(changes)
    options, choice = compose_options(own, named, own_env=own_env)
    check_compatible(choice, options.pop("requires"))
    identity = {"turntree": {"run_dir": f"runs/{choice.name}"}, "trainer": {"experiment_name": choice.name}}
    ours = OmegaConf.merge(identity, options)
    assert isinstance(ours, DictConfig)
    for path, value in changes:
        if path not in GROUPS:
            OmegaConf.update(ours, path, value, merge=False, force_add=True)
    # Before interpolations are resolved, so that verl's interpolations get the absolute paths, too.
    ours = OmegaConf.create(absolute(plain(ours)))
    section = ours.pop("turntree", None) or {}
    if not isinstance(section, DictConfig | dict):
        raise ConfigError(f"turntree is a section: expected keys with values, got {section!r:.60}")
    settings = TrainSettings.read(plain(OmegaConf.create(section)), "turntree")
    check_env(settings.env, settings.env_kwargs, "turntree.env_kwargs")
    check_env(settings.env, settings.val_env_kwargs, "turntree.val_env_kwargs")
    pickled, known = verl_defaults()
    given = plain(ours)
    _check_keys(given, known, path="")
    if OmegaConf.select(ours, "actor_rollout_ref.model") and OmegaConf.is_missing(ours.actor_rollout_ref.model, "path"):
        raise ConfigError(_NO_MODEL)
    whole = OmegaConf.unsafe_merge(pickle.loads(pickled), ours)  # unpickling is eight times as fast as deepcopy
    assert isinstance(whole, DictConfig)
    check_counts(whole)
    check_verl_keys(given, whole, known, settings)
    # From here on the whole configuration is modified in place. The order matters: turntree's settings depend on the
    # mode, and the engines' arguments on turntree's settings.
    fit_filter(whole)
    fit_rows(whole, {key for key in MICRO_BATCHES if key in dict(changes) or OmegaConf.select(own, key) is not None})
    _check_sections(whole)
    settings = _with_template(settings, whole)
    _check_rewards(settings, whole)
    _check_run_ahead(settings, whole)
    settings = with_mode(settings, whole)
    _fit_store(whole, settings)
    _check_own_engine(whole)
    for fit in (fit_vllm, fit_sglang):
        fit(whole, settings)
    fit_attention(whole)
    return Composition(choice=choice, settings=settings, verl=whole)


def _read(config: str) -> DictConfig:
    path = Path(config)
    if path.suffix not in (".yaml", ".yml"):
        return OmegaConf.create({"defaults": [config]})
    if not path.is_file():
        raise ConfigError(f"there is no file {config}; shipped configurations: {', '.join(list_configs())}")
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{config} holds a {type(values).__name__}, expected a mapping")
    loaded = OmegaConf.create(values)
    loaded.setdefault("defaults", [TRAINER, "_self_"])
    # A file may have its own options, in group folders next to the file.
    loaded.setdefault("hydra", {"searchpath": [f"file://{path.parent.absolute()}"]})
    return loaded


def quoted(value: str) -> str:
    """Quote ``value`` as a string of Hydra's override grammar."""
    escaped = value.replace("'", r"\'")
    return f"'{escaped}'"


def _parse(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException
    except ImportError as error:
        raise MissingExtra("training", "train") from error
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"an override is key=value, got {' '.join(overrides)!r}: {error}") from error
    for override in parsed:
        if override.is_sweep_override() or override.is_delete():
            raise ConfigError(f"an override sets one value (a list is [a,b]), got {override.input_line!r}")
    return [(_SHORT.get(override.key_or_group, override.key_or_group), override.value()) for override in parsed]


def check_training() -> None:
    """Raise ``MissingExtra`` if a package that a training imports is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("verl", "ray", "torch", "hydra")):
        raise MissingExtra("training", "train")


@lru_cache(maxsize=1)
def verl_defaults() -> tuple[bytes, Mapping[str, Any]]:
    """Return verl's configuration, pickled and as plain values; do not modify them."""
    check_training()
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations
    text = Path(spec.submodule_search_locations[0], *_FLAT).read_text(encoding="utf-8")
    known = {**yaml.load(text, YamlLoader), "model_engine": "dp"}
    return pickle.dumps(OmegaConf.create(known)), known


def _check_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> None:
    for key, value in ours.items():
        known = {*theirs, *HIDDEN.get(path, ())}
        if key not in known:
            known |= fields_of(theirs) if path else {"turntree", "defaults", *GROUPS}
            if key not in known and (suggestion := meant(key, theirs)):
                raise ConfigError(f"unknown key {key!r} in {path or 'verl'}; did you mean {suggestion!r}?")
            check_keys([key], known, path or "verl")
        section = theirs.get(key)
        check_value(f"{path}.{key}" if path else key, value, section)
        # An empty section of verl, or null, accepts any keys.
        if isinstance(value, dict) and isinstance(section, dict) and section and key not in _OPEN:
            _check_keys(value, section, f"{path}.{key}" if path else key)


def fields_of(section: Mapping[str, Any]) -> set[str]:
    """Return the fields of the dataclass that verl builds from a section; verl's YAML may lack some."""
    target = section.get("_target_")
    if not target:
        return set()
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


def _check_sections(config: DictConfig) -> None:
    # Raise errors now that otherwise verl's processes would raise later.
    if OmegaConf.is_missing(config.actor_rollout_ref.model, "path") or not config.actor_rollout_ref.model.path:
        raise ConfigError(_NO_MODEL)
    model = str(config.actor_rollout_ref.model.path)
    if model.startswith((".", "/", "~")) and not Path(model, "config.json").is_file():
        raise ConfigError(f"the model {model}: there is no config.json in that folder")
    EngineSettings.of(config.actor_rollout_ref.rollout)
    RunSettings.parse(plain(OmegaConf.select(config, "actor_rollout_ref.rollout.custom")))


def _with_template(settings: TrainSettings, config: DictConfig) -> TrainSettings:
    # Merge turntree's and verl's chat template variables, so that both programs render the same prompts.
    named = {**(plain(config.data.apply_chat_template_kwargs) or {}), **settings.template}
    settings = dataclasses.replace(settings, template=named)
    config.data.apply_chat_template_kwargs = named
    section = config.actor_rollout_ref.model
    model = str(section.tokenizer_path or section.path)
    if (named or settings.max_thinking_tokens is not None) and Path(model).is_dir():
        from transformers import AutoTokenizer

        from turntree.agents.loop.renderer import Renderer

        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(model)
            tokenizer.chat_template = section.custom_chat_template or tokenizer.chat_template
            Renderer(tokenizer, **settings.rendering)
        except RenderError as error:
            raise ConfigError(f"turntree.template, turntree.max_thinking_tokens: {error}") from error
    return settings


def _check_rewards(settings: TrainSettings, config: DictConfig) -> None:
    if settings.score_in_verl and not config.reward.num_workers:
        raise ConfigError("turntree.score_in_verl needs verl's reward workers; set reward.num_workers=1")
    scorer = make_scorer(settings.rewards, settings.answer_format)
    if settings.score_in_verl and scorer is not None and scorer.group_names:
        raise ConfigError(
            f"the rewards {', '.join(scorer.group_names)} need all samples of a task at once, and verl's reward loop "
            "scores each sample alone; set turntree.score_in_verl=false"
        )


def _check_run_ahead(settings: TrainSettings, config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    yields_memory = rollout.name != ROLLOUT_NAME or rollout.free_cache_engine
    if settings.run_ahead.enabled and settings.run_ahead.during_update and yields_memory:
        raise ConfigError(
            f"turntree.run_ahead.during_update=true needs rollout.name={ROLLOUT_NAME} with free_cache_engine=false, "
            f"got {rollout.name}, which gives its memory to the trainer during the update; remove that key"
        )


def _fit_store(config: DictConfig, settings: TrainSettings) -> None:
    if not settings.import_turns:
        return
    from turntree.agents.engines.drafting.tokenizer_hash import given_store

    if EngineSettings.of(config.actor_rollout_ref.rollout).speculation is None:
        raise ConfigError(
            "turntree.import_turns has turns to draft from, and speculation=none drafts nothing; remove one of them"
        )
    model = config.actor_rollout_ref.model
    try:
        store = given_store(settings.import_turns, tokenizer_hash(str(model.tokenizer_path or model.path)))
    except UsageError as error:
        raise ConfigError(f"turntree.import_turns: {error}") from error
    key = "actor_rollout_ref.rollout.engine_kwargs.turntree.forest.import_turns"
    OmegaConf.update(config, key, store, force_add=True)


def _check_own_engine(config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != ROLLOUT_NAME:
        return
    for name in REPLICA_SIZES:
        if rollout[name] not in (None, 1):
            raise ConfigError(
                f"turntree's engine runs a model on one device, got {name}={rollout[name]}; set it to 1, or use "
                "engine=vllm or engine=sglang for a model that needs several devices"
            )
    if EngineSettings.of(rollout).device == "cuda" and config.trainer.device == "cpu":
        raise ConfigError(
            "engine_kwargs.turntree.device=cuda needs a trainer on a GPU, which the engine shares; set "
            "device=gpu, or remove that key"
        )
