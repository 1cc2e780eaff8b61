"""Checks of single values of verl's configuration, which verl itself would make after minutes, or never."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.sections import ConfigError, plain

COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    *("trainer.total_training_steps", "trainer.total_epochs", "trainer.nnodes", "trainer.n_gpus_per_node"),
)
"""Keys whose value, where there is one, is a whole number of at least 1."""
NAMES = {
    "learning_rate": "lr",
    "batch_size": "train_batch_size",
    "num_epochs": "total_epochs",
    "max_steps": "total_training_steps",
}
"""Names that other trainers give to verl's keys."""

_TURNS = "turntree.env_kwargs.limits.max_turns bounds the policy's turns"
_TOOLS = "the tools are the environment's: turntree.env, turntree.env_kwargs"
_LENGTH = "the environment cuts what its tools answer"
_TOKENS = "sampled tokens are never rendered again here; leave it out"
_MULTI = "actor_rollout_ref.rollout.multi_turn."
LOOP_KEYS: Mapping[str, str] = {
    _MULTI + "max_assistant_turns": _TURNS,
    _MULTI + "max_user_turns": _TURNS,
    _MULTI + "max_parallel_calls": "turntree.env_kwargs.limits.max_tool_calls bounds the calls of an episode",
    _MULTI + "max_tool_response_length": _LENGTH,
    _MULTI + "tool_response_truncate_side": _LENGTH,
    _MULTI + "tool_config_path": _TOOLS,
    _MULTI + "function_tool_path": _TOOLS,
    _MULTI + "format": "turntree.env_kwargs.tool_format names the form of tool calls",
    _MULTI + "use_inference_chat_template": _TOKENS,
    _MULTI + "tokenization_sanity_check_mode": _TOKENS,
    _MULTI + "num_repeat_rollouts": "actor_rollout_ref.rollout.n is the number of samples of a task",
    "data.tool_config_path": _TOOLS,
    "data.function_tool_path": _TOOLS,
    "actor_rollout_ref.rollout.ignore_eos": "a turn ends at the model's end tokens, or at "
    "turntree.env_kwargs.limits.max_turn_tokens",
}
"""Keys that verl's own agent loops alone read, and what to set instead."""
_FOLLOWED = {_MULTI + "_target_", _MULTI + "enable"}
"""The others of ``multi_turn``: every training here is one of several turns, whatever is said."""


def check_loop_keys(config: DictConfig, defaults: Mapping[str, Any]) -> None:
    """Raise for a key that only verl's own agent loops read, where turntree's plays.

    Args:
        config: verl's whole configuration.
        defaults: verl's own, plain.

    Raises:
        ConfigError: If one has another value than verl gives it.
    """
    if OmegaConf.select(config, "actor_rollout_ref.rollout.agent.default_agent_loop") != "turntree_env":
        return
    for key, instead in LOOP_KEYS.items():
        section, _, name = key.rpartition(".")
        value = plain(OmegaConf.select(config, section)).get(name)
        default: Any = defaults
        for part in key.split("."):
            default = default.get(part, {})
        if value != default:  # both as written: an interpolation of verl's names a key that is checked itself
            raise ConfigError(f"{key}={value} is read by verl's own agent loops alone; {instead}")


def check_value(key: str, value: Any, default: Any) -> None:
    """Raise where verl's default is a number or a truth value, and ``value`` is something else.

    Args:
        key: The whole path.
        value: Plain; ``None`` and interpolations may stand anywhere.
        default: verl's, plain.

    Raises:
        ConfigError: If the kinds differ.
    """
    if value is None or (isinstance(value, str) and "${" in value):
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is true or false, got {value!r}")
    elif isinstance(default, int | float) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{key} is a number, {default} by default, got {value!r}")


def check_counts(config: DictConfig) -> None:
    """Raise for a count below 1.

    Raises:
        ConfigError: If one is no whole number of at least 1.
    """
    for key in COUNTS:
        value = OmegaConf.select(config, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{key} is a whole number of at least 1, got {value!r}")


def meant(key: str, theirs: Mapping[str, Any]) -> str | None:
    """The shortest path of verl's configuration that ends in ``key``, or in verl's name for it; ``None`` if none does.

    >>> meant("learning_rate", {"critic": {"model": {"optim": {"lr": 0}}}, "actor": {"optim": {"lr": 0}}})
    'actor.optim.lr'
    """
    wanted = NAMES.get(key, key)
    places = [path for path in _paths(theirs) if path.rpartition(".")[2] == wanted]
    return min(places, key=lambda path: (path.count("."), len(path), path), default=None)


def _paths(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in section.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.")
