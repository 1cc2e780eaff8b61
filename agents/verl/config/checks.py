"""Checks of single values of verl's configuration, which verl itself would make after minutes, or never."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.sections import ConfigError

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
