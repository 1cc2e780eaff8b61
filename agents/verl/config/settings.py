"""turntree's own settings inside verl's configuration.

verl passes two dictionaries on unchanged: ``actor_rollout_ref.rollout.engine_kwargs.turntree`` (the engine and its
draft store) and ``actor_rollout_ref.rollout.custom.turntree`` (playing, recording and scoring).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf

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
from turntree.agents.verl.config.sections import ConfigError, from_mapping, plain
from turntree.rewards import RewardError, answer_format_for
from turntree.spec_tree import ForestConfig

_DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """Section ``rollout.engine_kwargs.turntree.sharing``: draft sharing between replicas, for every engine."""

    max_bytes: int = 1 << 28
    """Memory of the broker's turn buffer, bytes."""
    # 2, so that a second replica has a task's turns when the task's first replica is lost or full.
    replicas_per_task: int = 2
    """Replicas that fetch a task's turns, the first in routing order; 0: every replica fetches all turns."""
    max_tokens: int = 1 << 22
    """Maximum tokens of one fetch, newest turns first."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_tokens < 1:
            raise ValueError(f"max_bytes and max_tokens must be positive, got {self.max_bytes} and {self.max_tokens}")
        if self.replicas_per_task < 0:
            raise ValueError(
                f"replicas_per_task must not be negative (0 fetches all turns), got {self.replicas_per_task}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Section ``rollout.engine_kwargs.turntree``; verl sets batch, context and dtype elsewhere."""

    speculation: Speculation | None = field(default_factory=Speculation)
    """Settings of drafting; ``null`` switches speculation off."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Settings of the draft store."""
    device: str = "auto"
    """Device of the engine: ``cpu``, ``cuda``, or ``auto`` for the trainer's device."""
    threads: int | None = None
    """Torch threads of the engine; ``None`` keeps torch's setting."""
    parked_slots: int | None = None
    """Cache slots for finished sequences, kept for prefix reuse; see ``LocalEngineConfig.parked_slots``."""
    prefill_chunk: int = 1024
    """See ``LocalEngineConfig.prefill_chunk``."""
    monitors: bool = True
    """Check exactness statistically (z-scores in the metrics); see ``LocalEngineConfig.monitors``."""
    sharing: SharingSettings | None = field(default_factory=SharingSettings)
    """Settings of draft sharing; ``null`` switches sharing off."""

    def __post_init__(self) -> None:
        if self.device not in _DEVICES:
            raise ValueError(f"device must be one of {', '.join(_DEVICES)}, got {self.device!r}")

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> EngineSettings:
        """Read the section; ``None`` means an empty one."""
        where = "actor_rollout_ref.rollout.engine_kwargs.turntree"
        if not isinstance(values or {}, Mapping):
            raise ConfigError(f"{where}: expected keys with values, got {values!r:.60}")
        sections = dict(values or {})
        for name, kind in (("speculation", Speculation), ("sharing", SharingSettings)):
            if sections.get(name) is not None:  # null switches the part off
                sections[name] = from_mapping(kind, sections[name], f"{where}.{name}")
        if "forest" in sections:
            forest = sections["forest"] or {}
            if isinstance(forest, Mapping):
                forest = {key: tuple(value) if isinstance(value, list) else value for key, value in forest.items()}
            sections["forest"] = from_mapping(ForestConfig, forest, f"{where}.forest")
        return from_mapping(cls, sections, where)

    @classmethod
    def of(cls, rollout: Any) -> EngineSettings:
        """Read the section of verl's ``actor_rollout_ref.rollout``."""
        return cls.parse(plain(OmegaConf.select(rollout, "engine_kwargs.turntree")))

    def engine_config(
        self, *, max_batch: int, max_context: int, dtype: str, seed: int, device: str
    ) -> LocalEngineConfig:
        """Return the engine's configuration with verl's values; ``device`` is the trainer's."""
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
    """Settings of playing, recording and scoring, read by every process of a run."""

    run_dir: str = ""
    """Folder of the run's records; empty records nothing."""
    record_episodes: bool = True
    """Write every training episode to ``run_dir``/episodes."""
    save_policy_every: int = 0
    """Save the sampling weights every N steps, including the first step; 0 saves none."""
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    """Reuse of earlier epochs' turns: ``{mode: rejection_sampling}``; empty reuses no turns."""
    run_ahead: RunAheadConfig = field(default_factory=RunAheadConfig)
    """Run-ahead, precomputing the next step's turns in idle slots: ``{enabled: true}``; empty switches it off."""
    tool_calls_ahead: ToolCallsAheadConfig = field(default_factory=ToolCallsAheadConfig)
    """Speculative tool calls, started before their turn has ended: ``{enabled: true}``; empty switches them off."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """Validations: ``{coupled: true}`` uses the same noise in every validation and drafts from the last one."""
    asynchronous: ResumeConfig | None = None
    """Handling of weight updates during episodes: ``{on_resume: episode}``; ``None`` with ``mode=sync``."""
    seeded: bool = True
    """Seed every turn, so that turns are reproducible; ``false``: only if reuse, run-ahead or validations need it."""
    memo_results: int = 0
    """Results of deterministic tools that a process caches; 0 caches none."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template: ``{enable_thinking: false}``, added to verl's own key."""
    max_thinking_tokens: int | None = None
    """Tokens of a turn after which an open thought is closed, so that the answer starts; ``null``: no limit."""
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """Rewards by name, each a weight (0 only logs) or ``{weight, low, high}``; empty uses the environment's reward."""
    answer_format: str | None = None
    """Data set whose answer format is used if the tasks' own data set has none."""
    score_in_verl: bool = False
    """Let verl's reward loop (section ``reward``) score episodes; records keep the environment's reward."""

    def __post_init__(self) -> None:
        make_scorer(self.rewards, self.answer_format)
        for name in ("save_policy_every", "memo_results"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.save_policy_every and not self.run_dir:
            raise ValueError("save_policy_every needs a run_dir to save to")

    @property
    def uses_turns(self) -> bool:
        """Return whether whole turns are reused or precomputed, or weight updates interrupt turns."""
        again = self.reuse.mode is not ReuseMode.NONE or self.run_ahead.enabled or self.validation.coupled
        return again or self.asynchronous is not None

    @property
    def draws_by_seed(self) -> bool:
        # If false, vLLM keeps its own sampler and may choose its newer model runner.
        return self.seeded or self.uses_turns

    @classmethod
    def read(cls, section: Mapping[str, Any], where: str) -> Self:
        """Read a section's plain values."""
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
        """Return the arguments of ``Renderer``."""
        return {"template_options": self.template, "max_thinking_tokens": self.max_thinking_tokens}

    def played(self) -> dict[str, Any]:
        """Return the fields of ``PlaySettings`` as plain values, without fields of subclasses."""
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
    """verl's checkpoint folder, from which a resumed run loads its draft stores; empty: start with empty stores."""

    @classmethod
    def parse(cls, custom: Mapping[str, Any] | None) -> RunSettings:
        """Read ``rollout.custom``; keys other than turntree's are ignored."""
        return cls.read((custom or {}).get("turntree") or {}, "actor_rollout_ref.rollout.custom.turntree")

    def scorer(self) -> Scorer | None:
        """Return the scorer; ``None`` leaves scoring to the environment or verl."""
        return None if self.score_in_verl else make_scorer(self.rewards, self.answer_format)

    @property
    def path(self) -> Path | None:
        return Path(self.run_dir) if self.run_dir else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings(PlaySettings):
    """Section ``turntree`` of a training configuration."""

    env: str
    """Id of the environment."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment, JSON values; ``limits`` is a mapping."""
    val_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the environment that differ in validations, for example ``{split: test}``."""
    train_tasks: int | None = None
    """Tasks of an epoch; ``None``: all of the environment's, at most 1,024."""
    val_tasks: int | None = None
    """Tasks to validate on; ``None``: all of the environment's validation tasks, at most 32."""
    run_dir: str = "runs/train"
    import_turns: str = ""
    """Warm start from a saved draft store: its file, or a folder of such files (checkpoints); empty: cold start."""
    fork_workers: bool = True
    """On the CPU, fork Ray's workers from one process that has already imported verl and torch."""

    def __post_init__(self) -> None:
        PlaySettings.__post_init__(self)
        for name in ("train_tasks", "val_tasks"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")


def make_scorer(rewards: Mapping[str, Any], answer_format: str | None) -> Scorer | None:
    """Return the scorer of a section; ``None`` if it names no rewards."""
    try:
        if answer_format is not None:
            answer_format_for(answer_format)
        return Scorer(rewards, answer_format=answer_format) if rewards else None
    except RewardError as error:
        raise ConfigError(str(error)) from error
