"""turntree's own settings inside verl's configuration, checked.

verl passes two dictionaries through untouched, and turntree reads them:
``actor_rollout_ref.rollout.engine_kwargs.turntree`` (the engine and its store)
and ``actor_rollout_ref.rollout.custom.turntree`` (what a run records).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from turntree.agents.engines.local.config import LocalEngineConfig, Speculation
from turntree.agents.reuse.reuse_config import ReuseConfig
from turntree.agents.reuse.run_ahead_config import RunAheadConfig
from turntree.agents.scoring.scorer import Scorer
from turntree.agents.verl.config.exchange_settings import ExchangeSettings
from turntree.agents.verl.config.sections import ConfigError, from_mapping
from turntree.rewards import RewardError, contract_for
from turntree.spec_tree import ForestConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Section ``rollout.engine_kwargs.turntree``; what verl itself decides (batch, context, dtype) is not
    repeated here."""

    speculation: Speculation | None = field(default_factory=Speculation)
    """How much is drafted; ``null`` switches speculation off."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """The store of earlier turns."""
    device: str = "cpu"
    """Torch device of the engine."""
    threads: int | None = None
    """Torch threads of the engine; ``None`` leaves torch's setting."""
    parked_slots: int | None = None
    """As ``LocalEngineConfig.parked_slots``."""
    prefill_chunk: int = 1024
    """As ``LocalEngineConfig.prefill_chunk``."""
    monitors: bool = True
    """As ``LocalEngineConfig.monitors``; without it no z-scores are logged."""
    exchange: ExchangeSettings | None = field(default_factory=ExchangeSettings)
    """How several replicas share their turns; ``null``: each keeps to its own."""

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> EngineSettings:
        """Read the section, ``None`` being an empty one."""
        where = "actor_rollout_ref.rollout.engine_kwargs.turntree"
        sections = dict(values or {})
        if sections.get("speculation") is not None:
            sections["speculation"] = from_mapping(Speculation, sections["speculation"], f"{where}.speculation")
        if sections.get("exchange") is not None:
            sections["exchange"] = from_mapping(ExchangeSettings, sections["exchange"], f"{where}.exchange")
        if "forest" in sections:
            forest = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in (sections["forest"] or {}).items()
            }
            sections["forest"] = from_mapping(ForestConfig, forest, f"{where}.forest")
        return from_mapping(cls, sections, where)

    def engine_config(self, *, max_batch: int, max_context: int, dtype: str, seed: int) -> LocalEngineConfig:
        """The engine's configuration, with what verl decides."""
        return LocalEngineConfig(
            max_batch=max_batch,
            max_context=max_context,
            dtype=dtype,
            seed=seed,
            device=self.device,
            threads=self.threads,
            parked_slots=self.parked_slots,
            prefill_chunk=self.prefill_chunk,
            monitors=self.monitors,
            speculation=self.speculation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """How a run plays, records and scores: what section ``turntree`` says, and every process of the run reads."""

    run_dir: str = ""
    """Folder of what the run records; empty records nothing."""
    record_episodes: bool = True
    """Write every training episode to ``run_dir``/episodes."""
    save_policy_every: int = 0
    """Keep the weights that sampled every so many steps, the first one included; 0 keeps none."""
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    """How earlier trajectories are used again: ``{mode: exact}``; empty uses none."""
    run_ahead: RunAheadConfig = field(default_factory=RunAheadConfig)
    """How much of the next step is rolled out ahead: ``{enabled: true}``; empty is nothing."""
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
        make_scorer(self.rewards, self.contract)
        for name in ("save_policy_every", "memo_results"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.save_policy_every and not self.run_dir:
            raise ValueError("save_policy_every needs a run_dir to save to")

    @classmethod
    def read(cls, section: Mapping[str, Any], where: str) -> Self:
        """Settings of a section's plain values.

        Raises:
            ConfigError: If a key is unknown, or a value cannot be.
        """
        values = dict(section)
        for name, kind in (("reuse", ReuseConfig), ("run_ahead", RunAheadConfig)):
            if name in values:
                values[name] = from_mapping(kind, values[name] or {}, f"{where}.{name}")
        return from_mapping(cls, values, where)

    def played(self) -> dict[str, Any]:
        """These settings as plain values, without what a sub-class adds."""
        names = {f.name for f in fields(PlaySettings)}
        values = {name: value for name, value in asdict(self).items() if name in names}
        return values | {"reuse": values["reuse"] | {"mode": str(self.reuse.mode)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(PlaySettings):
    """Section ``rollout.custom.turntree``."""

    checkpoint_dir: str = ""
    """Folder of verl's checkpoints, from which a resumed run takes its stores; empty: it begins with empty ones."""

    @classmethod
    def parse(cls, custom: Mapping[str, Any] | None) -> RunSettings:
        """Read ``rollout.custom``; what is not turntree's in it is left alone."""
        return cls.read((custom or {}).get("turntree") or {}, "actor_rollout_ref.rollout.custom.turntree")

    def scorer(self) -> Scorer | None:
        """What gives the rewards; ``None`` leaves them to the environment, or to verl."""
        return None if self.score_in_verl else make_scorer(self.rewards, self.contract)

    @property
    def path(self) -> Path | None:
        """``run_dir`` as a path, or ``None``."""
        return Path(self.run_dir) if self.run_dir else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings(PlaySettings):
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
    fork_workers: bool = True
    """On the CPU, start Ray's workers as forks of one process that has imported what they need."""

    def __post_init__(self) -> None:
        PlaySettings.__post_init__(self)
        for name in ("train_tasks", "val_tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def make_scorer(rewards: Mapping[str, Any], contract: str | None) -> Scorer | None:
    """The scorer of a section; ``None`` where no rewards are named.

    Raises:
        ConfigError: If a reward or the contract is unknown, or the rewards do not fit together.
    """
    try:
        if contract is not None:
            contract_for(contract)
        return Scorer(rewards, contract=contract) if rewards else None
    except RewardError as error:
        raise ConfigError(str(error)) from error
