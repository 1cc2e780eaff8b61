"""From one of our YAML files to the whole configuration of verl's ``main_ppo``.

A file has a section ``turntree`` (the environment, the run folder) and, beside
it, what differs from verl's own defaults, under verl's names. Every key is
checked against verl's configuration before a process is started.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.errors import MissingExtra
from turntree.agents.reuse_config import ReuseConfig
from turntree.agents.verl.sections import ConfigError, from_mapping, plain, unknown_key
from turntree.agents.verl.settings import EngineSettings, RunSettings, make_scorer
from turntree.agents.verl.ways import with_ways

_OPEN = ("engine_kwargs", "custom", "override_config", "ray_init", "override_optimizer_config")
"""Sections of verl that it hands on without looking at their keys."""
_HIDDEN = {"reward.custom_reward_function": ("reward_kwargs",)}
"""Keys that verl reads and its YAML does not show."""
_MANAGER = "turntree.agents.verl.manager.EpisodeManager"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Section ``turntree`` of a training configuration."""

    env: str
    """Id of the environment."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Its settings, JSON values; ``limits`` is a mapping."""
    val_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What differs in them for validation, for example ``{split: test}``."""
    train_tasks: int = 1024
    """Tasks to train on; a step takes ``data.train_batch_size`` of them, an epoch all."""
    val_tasks: int = 32
    """Tasks to validate on."""
    run_dir: str = "runs/train"
    """Folder of the run."""
    record_episodes: bool = True
    """Write every training episode."""
    save_policy_every: int = 0
    """Keep the weights that sampled every so many steps; 0 keeps none."""
    reuse: Mapping[str, Any] = field(default_factory=dict)
    """How earlier trajectories are used again, as ``ReuseConfig``: ``{mode: exact}``; empty uses none."""
    memo_results: int = 0
    """Results of deterministic tools that a process remembers; 0 remembers none."""
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """Rewards by name, each a weight or ``{weight, low, high}``: ``{answer: 1, few_turns: 0.1}``; weight 0 is a
    metric only. Empty leaves the reward to the environment."""
    contract: str | None = None
    """Data set by whose rules answers are compared where the tasks' own has none."""
    score_in_verl: bool = False
    """Leave the reward to verl's reward loop: section ``reward``. Recorded episodes keep the environment's."""

    def __post_init__(self) -> None:
        for name in ("train_tasks", "val_tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.memo_results < 0:
            raise ValueError(f"memo_results must not be negative, got {self.memo_results}")
        from_mapping(ReuseConfig, self.reuse, "turntree.reuse")
        make_scorer(self.rewards, self.contract)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A checked configuration."""

    settings: TrainSettings
    """turntree's section."""
    verl: DictConfig
    """verl's whole configuration, interpolations unresolved."""


def list_configs() -> tuple[str, ...]:
    """Names of the configurations that ship with turntree."""
    folder = resources.files("turntree.configs")
    names = (Path(entry.name) for entry in folder.iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".yaml"))


def compose(config: str, overrides: Sequence[str] = ()) -> Composition:
    """Read a configuration, apply overrides, and put it over verl's defaults.

    Args:
        config: Name of a shipped configuration, or path of a YAML file.
        overrides: ``key=value`` in Hydra's grammar; ``turntree.`` keys and ``ways`` are ours, all others verl's.

    Raises:
        ConfigError: If the configuration, a key or a value is unknown or missing.
        MissingExtra: If verl or Hydra is not installed.
    """
    ours = _read(config)
    changes = _parse(overrides)
    ours = with_ways(ours, dict(changes).get("ways", ours.pop("ways", ())))
    for path, value in changes:
        if path != "ways":
            OmegaConf.update(ours, path, value, merge=False, force_add=True)
    section = ours.pop("turntree", None) or {}
    settings = from_mapping(TrainSettings, plain(OmegaConf.create(section)), "turntree")
    theirs = _verl_defaults()
    _check_keys(plain(ours), plain(theirs), path="")
    if OmegaConf.select(ours, "actor_rollout_ref.model") and OmegaConf.is_missing(ours.actor_rollout_ref.model, "path"):
        raise ConfigError("no model is named; give its folder or Hugging Face id: actor_rollout_ref.model.path=DIR")
    OmegaConf.set_struct(theirs, False)
    merged = OmegaConf.merge(theirs, ours)
    assert isinstance(merged, DictConfig)
    _check_sections(merged)
    _check_rewards(settings, merged)
    return Composition(settings=settings, verl=merged)


def _read(config: str) -> DictConfig:
    path = Path(config)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"there is no file {config}; shipped configurations: {', '.join(list_configs())}")
        text = path.read_text(encoding="utf-8")
    else:
        if config not in list_configs():
            raise unknown_key(config, list_configs(), "the shipped configurations (a path ends in .yaml)")
        text = resources.files("turntree.configs").joinpath(f"{config}.yaml").read_text(encoding="utf-8")
    loaded = OmegaConf.create(text)
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{config} holds a {type(loaded).__name__}, expected a mapping")
    base = loaded.pop("base", None)
    if base is None:
        return loaded
    folder = resources.files("turntree.configs").joinpath("base")
    bases = [Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    if base not in bases:
        raise unknown_key(base, bases, f"the bases that {config} may name")
    merged = OmegaConf.merge(OmegaConf.create(folder.joinpath(f"{base}.yaml").read_text(encoding="utf-8")), loaded)
    assert isinstance(merged, DictConfig)
    return merged


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
            raise ConfigError(f"an override sets one value, got {override.input_line!r}")
    return [(override.key_or_group, override.value()) for override in parsed]


def _verl_defaults() -> DictConfig:
    return copy.deepcopy(_read_verl_defaults())


@lru_cache(maxsize=1)
def _read_verl_defaults() -> DictConfig:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("training", "train")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return hydra_compose("ppo_trainer")


def _check_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> None:
    """Every key of ``ours`` is known to verl. Both are plain, interpolations as text."""
    for key, value in ours.items():
        if key not in theirs and key not in _fields(theirs) and key not in _HIDDEN.get(path, ()):
            known = {*theirs, *_fields(theirs), *_HIDDEN.get(path, ()), *(() if path else ("turntree",))}
            raise unknown_key(key, known, path or "verl")
        section = theirs.get(key)
        # An empty section, or none, is one that verl leaves to its user.
        if isinstance(value, dict) and isinstance(section, dict) and section and key not in _OPEN:
            _check_keys(value, section, f"{path}.{key}" if path else key)


def _fields(section: Mapping[str, Any]) -> set[str]:
    """Fields of the dataclass that verl makes of a section; it may have more than verl's YAML shows."""
    target = section.get("_target_")
    if not target:
        return set()
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    return {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


def _check_sections(config: DictConfig) -> None:
    """What only the running processes would find out, found out before they are started."""
    if OmegaConf.is_missing(config.actor_rollout_ref.model, "path"):
        raise ConfigError("no model is named; give its folder or Hugging Face id: actor_rollout_ref.model.path=DIR")
    model = str(config.actor_rollout_ref.model.path)
    if model.startswith((".", "/", "~")) and not (Path(model).expanduser() / "config.json").is_file():
        raise ConfigError(f"actor_rollout_ref.model.path={model}: there is no config.json in that folder")
    rollout = config.actor_rollout_ref.rollout
    EngineSettings.parse(plain(OmegaConf.select(rollout, "engine_kwargs.turntree")))
    RunSettings.parse(plain(OmegaConf.select(rollout, "custom")))


def _check_rewards(settings: TrainSettings, config: DictConfig) -> None:
    """Whoever is to give the rewards is there to give them."""
    manager = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    ours = manager == _MANAGER
    if settings.score_in_verl and (ours or not config.reward.num_workers):
        raise ConfigError(
            "turntree.score_in_verl needs verl's own agent-loop manager and its reward workers; set "
            "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null reward.num_workers=1"
        )
    scorer = make_scorer(settings.rewards, settings.contract)
    if scorer is not None and scorer.group_names and not ours:
        raise ConfigError(
            f"the rewards {', '.join(scorer.group_names)} need all samples of a task at once; set "
            f"actor_rollout_ref.rollout.agent.agent_loop_manager_class={_MANAGER}"
        )
