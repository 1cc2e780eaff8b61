"""Read turntree's engine section, ``engine_kwargs.turntree``, for an external engine.

An external engine uses the settings of speculation, the draft store and draft sharing; any other key is an error.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import EngineSettings, PlaySettings
from turntree.envs.data.json_files import read_json

ROLLOUT = "actor_rollout_ref.rollout"
_READ = ("speculation", "forest", "sharing")


def fit_context(config: DictConfig, *, kept: int = 0, given: int | None = None) -> int:
    """Set an external engine's context length to the longest episode's length, and return the context length.

    Without this, the engine would use the model's context length and reserve memory for it.

    Args:
        kept: Tokens that the engine reserves at the end of its context.
        given: The context in the engine's own arguments, if any.
    """
    rollout = OmegaConf.select(config, ROLLOUT)
    if rollout.max_model_len is None:
        longest = given or rollout.prompt_length + rollout.response_length + kept
        # verl and the engines refuse a context longer than the model's. At that limit the reserved tokens shorten the
        # episode.
        rollout.max_model_len = min(longest, positions(str(config.actor_rollout_ref.model.path)) or longest)
    return given or int(rollout.max_model_len)


def positions(model: str) -> int | None:
    """Return the context length in a model folder's ``config.json``; ``None`` if no file or key gives one."""
    file = Path(model).expanduser() / "config.json"
    try:
        read = read_json(file)
    except (OSError, ValueError):
        return None
    read = read if isinstance(read, dict) else {}
    # Multimodal models have the language model's sizes in ``text_config``.
    length = read.get("max_position_embeddings", (read.get("text_config") or {}).get("max_position_embeddings"))
    return length if isinstance(length, int) else None


def asking_setting(run: PlaySettings) -> str:
    """Return the setting, as ``KEY=VALUE``, that makes turntree reuse stored turns; empty if no setting does.

    Coupled validations reuse turns, too: all validations use the same noise, so each replays the one before.
    """
    if run.reuse.mode is not ReuseMode.NONE:
        return f"turntree.reuse.mode={run.reuse.mode}"
    if run.run_ahead.enabled:
        return "turntree.run_ahead.enabled=true"
    return "turntree.validation.coupled=true" if run.validation.coupled else ""


def two_drafters(key: str, owner: str) -> ConfigError:
    """Return the error for a key that asks for drafts of ``owner`` while turntree drafts."""
    return ConfigError(
        f"{key} asks for {owner}'s own drafts while turntree drafts, too; set speculation=none to use only {owner}'s"
    )


def check_priority(config: DictConfig, key: str, value: str | int | bool) -> None:
    """Raise if an engine argument prevents scheduling precomputed turns (of later steps) after all other turns."""
    given = OmegaConf.select(config, key)
    if given not in (None, value):
        raise ConfigError(
            f"turntree.run_ahead.enabled=true needs {key}={str(value).lower()}, so that precomputed turns come after "
            f"all other turns, got {given}; remove that key"
        )


def drafts_of(config: DictConfig, name: str, title: str, run: PlaySettings) -> EngineSettings | None:
    """Return the draft settings of an external engine; ``None`` if it is not the configured engine or does not draft.

    Args:
        name: The engine's name in ``rollout.name``.
        title: The engine's name in messages.
    """
    rollout = OmegaConf.select(config, ROLLOUT)
    if rollout is None or rollout.name != name:
        return None
    asking = asking_setting(run)
    if asking and rollout.enable_rollout_routing_replay:
        raise ConfigError(
            f"{asking} begins turns with stored tokens, whose routed experts are not known; set "
            f"{ROLLOUT}.enable_rollout_routing_replay=false, or remove that setting"
        )
    ours = plain(OmegaConf.select(rollout, "engine_kwargs.turntree")) or {}
    unread = sorted(set(ours) - set(_READ))
    if unread:
        raise ConfigError(
            f"{ROLLOUT}.engine_kwargs.turntree.{unread[0]} is a setting of turntree's own engine; with "
            f"rollout.name={name} only {', '.join(_READ[:-1])} and {_READ[-1]} are read; {title}'s own arguments "
            f"belong in {ROLLOUT}.engine_kwargs.{name}"
        )
    settings = EngineSettings.parse(ours)
    if settings.speculation is None:
        return None
    mtp = OmegaConf.select(config, f"{ROLLOUT}.mtp")
    if mtp is not None and mtp.enable and mtp.enable_rollout:
        raise two_drafters("actor_rollout_ref.model.mtp.enable_rollout", "the model")
    return settings
