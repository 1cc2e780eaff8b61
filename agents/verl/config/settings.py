"""turntree's own settings inside verl's configuration, checked.

verl passes two dictionaries on unchanged, and turntree reads them:
``actor_rollout_ref.rollout.engine_kwargs.turntree`` (the engine and its store)
and ``actor_rollout_ref.rollout.custom.turntree`` (the records of a run).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from turntree.agents.engines.local.config import LocalEngineConfig, Speculation
from turntree.agents.resuming.resume_config import ResumeConfig
from turntree.agents.scoring.scorer import Scorer
from turntree.agents.turn_drafts.config import (
    ReuseConfig,
    ReuseMode,
    RunAheadConfig,
    ToolCallsAheadConfig,
    ValidationConfig,
)
from turntree.agents.verl.config.sections import ConfigError, from_mapping
from turntree.rewards import RewardError, answer_format_for
from turntree.spec_tree import ForestConfig

_DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """Section ``rollout.engine_kwargs.turntree.sharing``: how replicas share their turns, whatever the engine."""

    max_bytes: int = 1 << 28
    """Memory of the broker's log, bytes."""
    replicas_per_task: int = 2
    """A replica fetches the turns of tasks for which it is among the first so many in the routing order; 0 fetches
    all turns. With 2, the replica that takes over a task from a lost or full one has its turns already."""
    max_tokens: int = 1 << 22
    """Most tokens of one fetch, the newest first."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_tokens < 1:
            raise ValueError(f"max_bytes and max_tokens must be positive, got {self.max_bytes} and {self.max_tokens}")
        if self.replicas_per_task < 0:
            raise ValueError(
                f"replicas_per_task must not be negative (0 fetches all turns), got {self.replicas_per_task}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Section ``rollout.engine_kwargs.turntree``; values that verl sets (batch, context, dtype) are not
    repeated here."""

    speculation: Speculation | None = field(default_factory=Speculation)
    """Settings of drafting; ``null`` switches speculation off."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Settings of the store of earlier turns."""
    device: str = "auto"
    """Device of the engine: ``cpu``, ``cuda``, or ``auto``: that of the trainer."""
    threads: int | None = None
    """Torch threads of the engine; ``None`` leaves torch's setting."""
    parked_slots: int | None = None
    """As ``LocalEngineConfig.parked_slots``."""
    prefill_chunk: int = 1024
    """As ``LocalEngineConfig.prefill_chunk``."""
    monitors: bool = True
    """As ``LocalEngineConfig.monitors``; without it no z-scores are logged."""
    sharing: SharingSettings | None = field(default_factory=SharingSettings)
    """Settings of the sharing of turns between replicas; ``null``: each keeps its own."""

    def __post_init__(self) -> None:
        if self.device not in _DEVICES:
            raise ValueError(f"device must be one of {', '.join(_DEVICES)}, got {self.device!r}")

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> EngineSettings:
        """Read the section, ``None`` being an empty one."""
        where = "actor_rollout_ref.rollout.engine_kwargs.turntree"
        if not isinstance(values or {}, Mapping):
            raise ConfigError(f"{where}: expected keys with values, got {values!r:.60}")
        sections = dict(values or {})
        if sections.get("speculation") is not None:
            sections["speculation"] = from_mapping(Speculation, sections["speculation"], f"{where}.speculation")
        if sections.get("sharing") is not None:
            sections["sharing"] = from_mapping(SharingSettings, sections["sharing"], f"{where}.sharing")
        if "forest" in sections:
            forest = sections["forest"] or {}
            if isinstance(forest, Mapping):
                forest = {key: tuple(value) if isinstance(value, list) else value for key, value in forest.items()}
            sections["forest"] = from_mapping(ForestConfig, forest, f"{where}.forest")
        return from_mapping(cls, sections, where)

    def engine_config(
        self, *, max_batch: int, max_context: int, dtype: str, seed: int, device: str
    ) -> LocalEngineConfig:
        """The engine's configuration, with the values that verl sets; ``device`` is the trainer's."""
        return LocalEngineConfig(
            max_batch=max_batch,
            max_context=max_context,
            dtype=dtype,
            seed=seed,
            device=device if self.device == "auto" else self.device,
            threads=self.threads,
            parked_slots=self.parked_slots,
            prefill_chunk=self.prefill_chunk,
            monitors=self.monitors,
            speculation=self.speculation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """Settings of playing, recording and scoring: in section ``turntree``, and read by every process of the run."""

    run_dir: str = ""
    """Folder of the run's records; empty records nothing."""
    record_episodes: bool = True
    """Write every training episode to ``run_dir``/episodes."""
    save_policy_every: int = 0
    """Save the weights that sampled every so many steps, the first one included; 0 saves none."""
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    """Reuse of earlier trajectories: ``{mode: rejection_sampling}``; empty uses none."""
    run_ahead: RunAheadConfig = field(default_factory=RunAheadConfig)
    """Precomputation of the next step's rollouts: ``{enabled: true}``; empty precomputes none."""
    tool_calls_ahead: ToolCallsAheadConfig = field(default_factory=ToolCallsAheadConfig)
    """Tool calls made before their turn has ended: ``{enabled: true}``; empty makes none."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """Validations: ``{coupled: true}`` uses the same noise at each, and each replays the last one."""
    asynchronous: ResumeConfig | None = None
    """Where the weights change while episodes are played (``mode=colocate_async``): ``{on_resume: episode}``; else
    ``None``, whatever is given."""
    seeded: bool = True
    """Request every turn with a seed: it is then the same whatever the drafts, the batch, or a second run.
    ``false``: only where ``reuse``, ``run_ahead`` or ``validation`` needs the noise of a turn again. vLLM without
    seeds keeps its own sampler, and may choose its newer model runner."""
    memo_results: int = 0
    """Results of deterministic tools that a process caches; 0 caches none."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template: ``{enable_thinking: false}``; verl's ``data.apply_chat_template_kwargs`` are
    added."""
    max_thinking_tokens: int | None = None
    """Tokens of a turn after which a thought that goes on is closed, and the answer follows; ``null`` is no bound."""
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """Rewards by name, each a weight or ``{weight, low, high}``: ``{answer: 1, few_turns: 0.1}``; weight 0 is a
    metric only. Empty leaves the reward to the environment."""
    answer_format: str | None = None
    """Data set whose rules compare answers if the tasks' own has none."""
    score_in_verl: bool = False
    """Leave the reward to verl's reward loop: section ``reward``. Recorded episodes keep the environment's."""

    def __post_init__(self) -> None:
        make_scorer(self.rewards, self.answer_format)
        for name in ("save_policy_every", "memo_results"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.save_policy_every and not self.run_dir:
            raise ValueError("save_policy_every needs a run_dir to save to")

    @property
    def uses_turns(self) -> bool:
        """Whether earlier turns are used beyond drafts, turns are made ahead, or updates interrupt them."""
        again = self.reuse.mode is not ReuseMode.NONE or self.run_ahead.enabled or self.validation.coupled
        return again or self.asynchronous is not None

    @property
    def draws_by_seed(self) -> bool:
        """Whether turns are requested with seeds; the one place that decides it."""
        return self.seeded or self.uses_turns

    @classmethod
    def read(cls, section: Mapping[str, Any], where: str) -> Self:
        """Read a section's plain values.

        Raises:
            ConfigError: If a key is unknown, or a value invalid.
        """
        values = dict(section)
        kinds = {
            "reuse": ReuseConfig,
            "run_ahead": RunAheadConfig,
            "tool_calls_ahead": ToolCallsAheadConfig,
            "validation": ValidationConfig,
            "asynchronous": ResumeConfig,
        }
        for name, kind in kinds.items():
            if name in values:
                values[name] = from_mapping(kind, values[name] or {}, f"{where}.{name}")
        return from_mapping(cls, values, where)

    @property
    def rendering(self) -> dict[str, Any]:
        """The arguments of ``Renderer``."""
        return {"template_options": self.template, "max_thinking_tokens": self.max_thinking_tokens}

    def played(self) -> dict[str, Any]:
        """These settings as plain values, without the fields of a sub-class."""
        names = {f.name for f in fields(PlaySettings)}
        values = {name: value for name, value in asdict(self).items() if name in names}
        if self.asynchronous is None:
            del values["asynchronous"]
        else:
            values["asynchronous"]["on_resume"] = str(self.asynchronous.on_resume)
        return values | {"reuse": values["reuse"] | {"mode": str(self.reuse.mode)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(PlaySettings):
    """Section ``rollout.custom.turntree``."""

    checkpoint_dir: str = ""
    """Folder of verl's checkpoints, from which a resumed run loads its stores; empty: it begins with empty ones."""

    @classmethod
    def parse(cls, custom: Mapping[str, Any] | None) -> RunSettings:
        """Read ``rollout.custom``; keys that are not turntree's are ignored."""
        return cls.read((custom or {}).get("turntree") or {}, "actor_rollout_ref.rollout.custom.turntree")

    def scorer(self) -> Scorer | None:
        """The scorer of the rewards; ``None`` leaves them to the environment, or to verl."""
        return None if self.score_in_verl else make_scorer(self.rewards, self.answer_format)

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
    """Settings of the environment, JSON values; ``limits`` is a mapping."""
    val_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ for validation, for example ``{split: test}``."""
    train_tasks: int | None = None
    """Tasks to train on; a step takes ``data.train_batch_size`` of them, an epoch all. ``None``: those that the
    environment has, at most 1,024."""
    val_tasks: int | None = None
    """Tasks to validate on; ``None``: those that the environment has for validation, at most 32."""
    run_dir: str = "runs/train"
    import_turns: str = ""
    """Turns of other runs that the first epoch is drafted from: a store's file, or a folder with such files, such as a
    run with checkpoints; empty begins with none."""
    fork_workers: bool = True
    """On the CPU, start Ray's workers as forks of one process that has imported what they need."""

    def __post_init__(self) -> None:
        PlaySettings.__post_init__(self)
        for name in ("train_tasks", "val_tasks"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")


def make_scorer(rewards: Mapping[str, Any], answer_format: str | None) -> Scorer | None:
    """The scorer of a section; ``None`` if no rewards are named.

    Raises:
        ConfigError: If a reward or the answer format is unknown, or the rewards are incompatible.
    """
    try:
        if answer_format is not None:
            answer_format_for(answer_format)
        return Scorer(rewards, answer_format=answer_format) if rewards else None
    except RewardError as error:
        raise ConfigError(str(error)) from error
