"""Check single values of verl's configuration early: verl would check them after minutes, or never.

``verl_keys.toml`` lists every key of verl and whether turntree follows, refuses or ignores it.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from omegaconf import DictConfig, OmegaConf

from turntree.agents.loop.env_settings import check_settings
from turntree.agents.verl.config.sections import ConfigError, unknown_key
from turntree.envs import list_envs
from turntree.envs.errors import UnknownEnvironment

logger = logging.getLogger(__name__)

#: keys whose value, if set, is an integer of at least 1
COUNTS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    *("trainer.total_training_steps", "trainer.total_epochs", "trainer.nnodes", "trainer.n_gpus_per_node"),
)
#: verl's key for a name that other trainers use
NAMES = {
    "learning_rate": "lr",
    "batch_size": "train_batch_size",
    "num_epochs": "total_epochs",
    "max_steps": "total_training_steps",
}

_TABLE = Path(__file__).with_name("verl_keys.toml")


class Row(NamedTuple):
    """A row of ``verl_keys.toml``: what turntree does with some keys of verl."""

    fate: str  #: followed, unsupported (except for the values ``takes``), refused, or meaningless (only a warning)
    keys: tuple[str, ...]
    where: Mapping[str, Any]  #: values of other keys with which the row applies
    takes: tuple[Any, ...]  #: supported values
    why: str

    def holds(self, value_of: Callable[[str], Any]) -> bool:
        """Return whether the row applies to a configuration; ``value_of`` returns a key's value."""
        return all(
            value_of(key) in (value if isinstance(value, list) else [value]) for key, value in self.where.items()
        )


@lru_cache(maxsize=1)
def key_rows() -> tuple[Row, ...]:
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["row"]
    return tuple(
        Row(
            row["fate"],
            tuple(f"{above}.{key}".lstrip(".") for above in row.get("under", [""]) for key in row["keys"]),
            row.get("where", {}),
            tuple(row.get("takes", ())),
            row.get("why", ""),
        )
        for row in rows
    )


def row_of(key: str, value_of: Callable[[str], Any]) -> Row | None:
    parts = key.split(".")
    around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return next((row for row in key_rows() if not around.isdisjoint(row.keys) and row.holds(value_of)), None)


def check_verl_keys(given: Mapping[str, Any], config: DictConfig, defaults: Mapping[str, Any], ours: Any) -> None:
    """Raise for a key of verl that would be ignored or fail later; warn of one that changes nothing.

    Raises:
        ConfigError: If a changed key is refused or its value is not supported; its ``others`` lists the further
            problems.
    """

    def value_of(key: str) -> Any:
        section, _, name = key.partition(".")
        return getattr(ours, name) if section == "turntree" else OmegaConf.select(config, key)

    problems = []
    for key, value in _leaves(given):
        row = row_of(key, value_of)
        # Compare values before interpolation: the key that an interpolation refers to is checked on its own.
        if row is None or row.fate == "followed" or value in (row.takes or (_default(key, defaults),)):
            continue
        if row.fate == "refused":
            problems.append(f"{key}={value} would be ignored: {row.why}")
        elif row.fate == "meaningless":
            logger.warning("%s=%s changes nothing: %s", key, value, row.why)
        elif (resolved := OmegaConf.select(config, key) if "${" in str(value) else value) not in row.takes:
            takes = " or ".join(map(str, row.takes))
            problems.append(f"{key}={resolved} is not supported: {row.why}; take {key}={takes}")
    if problems:
        error = ConfigError(problems[0])
        error.others = tuple(problems[1:])
        raise error


def _leaves(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _default(key: str, defaults: Any) -> Any:
    # Keys that verl's YAML does not have count as ``None``.
    for part in key.split("."):
        defaults = defaults.get(part) if isinstance(defaults, Mapping) else None
    return defaults


def check_value(key: str, value: Any, default: Any) -> None:
    """Raise if verl's default is a number, a boolean or a section and ``value`` is something else."""
    if isinstance(value, str) and "${" in value:
        return
    missing = value is None and key.count(".") > 1  # verl accepts null for sections below the first two levels
    if isinstance(default, Mapping) and default and not isinstance(value, Mapping) and not missing:
        raise ConfigError(f"{key} is a section: expected keys with values, got {value!r:.60}")
    if value is None:
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is true or false, got {value!r}")
    elif isinstance(default, int | float) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{key} is a number, {default} by default, got {value!r}")


def check_counts(config: DictConfig) -> None:
    """Raise a ``ConfigError`` for a count that is not an integer of at least 1."""
    for key in COUNTS:
        value = OmegaConf.select(config, key)
        if value is None and key == "trainer.total_training_steps":  # the number of epochs then sets the steps
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{key} is a whole number of at least 1, got {value!r}")


def meant(key: str, theirs: Mapping[str, Any]) -> str | None:
    """Return the verl key that an unknown ``key`` probably means: the shortest path that ends in it, or ``None``.

    >>> meant("learning_rate", {"critic": {"model": {"optim": {"lr": 0}}}, "actor": {"optim": {"lr": 0}}})
    'actor.optim.lr'
    """
    wanted = NAMES.get(key, key)
    paths = [path for path in _paths(theirs) if path.rpartition(".")[2] == wanted]
    return min(paths, key=lambda path: (path.count("."), len(path), path), default=None)


def _paths(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in section.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}.")


def no_env(env_id: str, error: ImportError | UnknownEnvironment) -> ConfigError:
    """Return the error for an environment that cannot be imported or is not registered."""
    module = env_id.partition(":")[0]
    # PYTHONPATH is only to blame if the environment's own module is missing, not a module that it imports.
    absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    return ConfigError(f"turntree.env={env_id}: {error}{'; is its folder on PYTHONPATH?' if absent else ''}")


def check_env(env_id: str, settings: Mapping[str, Any], where: str) -> None:
    """Check the names and types of an environment's settings; ``limits`` is given as a mapping of fields."""
    if ":" not in env_id and env_id not in gymnasium.registry:
        raise unknown_key(env_id, list_envs(), "turntree.env")
    try:
        check_settings(env_id, settings)
    except (ImportError, UnknownEnvironment) as error:
        raise no_env(env_id, error) from error
    except ValueError as error:
        raise ConfigError(f"{where} ({env_id}): {error}") from error
