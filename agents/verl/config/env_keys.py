"""Checks of an environment's settings, before a process is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from turntree.agents.loop.env_settings import check_settings
from turntree.agents.verl.config.sections import ConfigError, unknown_key
from turntree.envs import list_envs
from turntree.envs.errors import UnknownEnvironment


def no_env(env_id: str, error: ImportError | UnknownEnvironment) -> ConfigError:
    """The error for an environment that is not to be had; the search path is blamed only for its own module."""
    module = env_id.partition(":")[0]
    absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    return ConfigError(f"turntree.env={env_id}: {error}{'; is its folder on PYTHONPATH?' if absent else ''}")


def check_env(env_id: str, settings: Mapping[str, Any], where: str) -> None:
    """Check an environment's settings by name and kind.

    Args:
        settings: Its keyword arguments; ``limits`` is a mapping.

    Raises:
        ConfigError: If the environment or a name is unknown, or a value is wrong.
    """
    if ":" not in env_id and env_id not in gymnasium.registry:
        raise unknown_key(env_id, list_envs(), "turntree.env")
    try:
        check_settings(env_id, settings)
    except (ImportError, UnknownEnvironment) as error:
        raise no_env(env_id, error) from error
    except ValueError as error:
        raise ConfigError(f"{where} ({env_id}): {error}") from error
