"""Checks of an environment's settings by name, before a process is started.

The environment is not created: that may read a data set. Values are not checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from turntree.agents.loop.customer_settings import customer_settings
from turntree.agents.verl.config.sections import ConfigError, check_keys, from_mapping, unknown_key
from turntree.envs import Limits, list_envs
from turntree.envs.errors import UnknownEnvironment
from turntree.envs.registry import find_creator


def check_env(env_id: str, settings: Mapping[str, Any], where: str) -> None:
    """Check the names of an environment's settings.

    Args:
        env_id: As in ``turntree.envs.make``.
        settings: Its keyword arguments; ``limits`` is a mapping.
        where: Name of their section, for messages.

    Raises:
        ConfigError: If the environment or a name is unknown, or a limit is invalid.
    """
    known = _keywords(_creator(env_id))
    if known is not None:
        check_keys(settings, known, f"{where} ({env_id})")
    if "limits" in settings:
        from_mapping(Limits, settings["limits"] or {}, f"{where}.limits")
    try:
        customer_settings(settings)
    except ValueError as error:
        raise ConfigError(f"{where}.customer: {error}") from error


def _creator(env_id: str) -> Any:
    if ":" not in env_id and env_id not in gymnasium.registry:
        raise unknown_key(env_id, list_envs(), "turntree.env")
    try:
        creator = find_creator(env_id)
    except (ImportError, UnknownEnvironment) as error:
        raise ConfigError(f"there is no environment {env_id}: {error}; is its folder on PYTHONPATH?") from error
    if callable(creator):
        return creator
    entry = gymnasium.spec(creator).entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def _keywords(creator: Any) -> set[str] | None:
    """Names that a creator takes, with those of base classes that get its other keywords; ``None``: any name."""
    kinds = [kind for kind in inspect.getmro(creator) if "__init__" in vars(kind)] if inspect.isclass(creator) else []
    names: set[str] = set()
    for function in [vars(kind)["__init__"] for kind in kinds] or [creator]:
        parameters = inspect.signature(function).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} - {"self"}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names
    return None
