"""The registry of environments by id, kept in Gymnasium's registry.

The package's own environments are listed in ``catalogue``. Other packages add theirs through the entry-point group
``turntree.envs`` (``"my/Env-v0" = "module:Class"``); their modules are imported when an environment is first made.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import gymnasium

from turntree.envs.catalogue import CATALOGUE
from turntree.envs.env import Env
from turntree.envs.errors import UnknownEnvironment, nearest_hint

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "turntree.envs"
_registered: set[str] = set()
#: LIBRARY in ids of the form ``LIBRARY:NAME`` -> callable in the library's bridge that makes an environment of NAME.
_BRIDGES = {"gem": "Gem", "reasoning_gym": "ReasoningGym", "textarena": "TextArena", "verifiers": "named_taskset"}


def register(id: str, entry_point: str | Callable[..., Env], **kwargs: Any) -> None:
    """Register an environment with turntree and with Gymnasium.

    Args:
        id: ``namespace/Name-v0``.
        entry_point: The class, or ``"module:Class"``, which is imported when an environment is first made.

    Raises:
        gymnasium.error.Error: If ``id`` is not of this form.
    """
    gymnasium.register(id=id, entry_point=entry_point, kwargs=kwargs)
    _registered.add(id)


def unregister(id: str) -> None:
    """Remove an environment from turntree and from Gymnasium; an unknown id is ignored."""
    gymnasium.registry.pop(id, None)
    _registered.discard(id)


def make(id: str, **kwargs: Any) -> Env:
    """Make an environment, without Gymnasium's wrappers.

    Args:
        id: A registered id; or ``MODULE:NAME``, where NAME is a class in the module or an id that the module registers;
            or a task set of another library, such as ``reasoning_gym:chain_sum`` or ``verifiers:reverse-text``.

    Raises:
        ModuleNotFoundError: If there is no such module.
        UnknownEnvironment: If there is no such id or class; the message suggests the most similar id.
        TypeError: If the environment is not a ``turntree.envs.Env``.
    """
    creator = find_creator(id)
    if callable(creator):
        env = creator(**kwargs)
    else:
        env = gymnasium.make(creator, disable_env_checker=True, **kwargs).unwrapped
    if not isinstance(env, Env):
        raise TypeError(f"{id} is a {type(env).__name__}, not a turntree.envs.Env; use gymnasium.make for it")
    return env


def find_creator(id: str) -> str | Callable[..., Any]:
    """Return a registered id, or a callable that makes an environment that is not registered.

    Raises:
        ModuleNotFoundError: If there is no such module.
        UnknownEnvironment: If there is no such id or class; the message suggests the nearest.
    """
    module, colon, name = str(id).partition(":")
    if not colon:
        name = module
    elif (bridge := _BRIDGES.get(module)) is not None:
        return functools.partial(getattr(importlib.import_module(f"turntree.envs.bridges.{module}"), bridge), name)
    # The import may register environments, so it comes before the look-up of the name.
    source = importlib.import_module(module) if colon else None
    if name in gymnasium.registry:
        return name
    member: object = getattr(source, name, None)
    if callable(member):
        return member
    if source is None:
        near = nearest_hint(name, list_envs(), "registered are", cutoff=0.4)
        raise UnknownEnvironment(f"no environment is registered as {name!r}; {near}")
    members = vars(source).items()
    classes = [key for key, value in members if inspect.isclass(value) and issubclass(value, Env) and value is not Env]
    near = nearest_hint(name, [*classes, *list_envs()], "", cutoff=0.4)
    raise UnknownEnvironment(
        f"the module {module} has no environment {name!r}; its environment classes are: "
        f"{', '.join(classes) or 'none'}{f'; {near}' if near.endswith('?') else ''}"
    )


def list_envs() -> list[str]:
    """Return all registered ids, sorted."""
    return sorted(_registered)


def register_with_gymnasium() -> None:
    """Register the catalogue and the environments of installed packages, except ids that Gymnasium already has."""
    for entry in CATALOGUE:
        if entry.id not in gymnasium.registry:
            register(entry.id, entry.entry_point, **entry.arguments)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name in gymnasium.registry:
            continue
        try:
            register(point.name, point.value)
        except gymnasium.error.Error:
            logger.warning("ignored the entry point %s = %s", point.name, point.value, exc_info=True)
