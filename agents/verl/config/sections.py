"""Configuration sections as dataclasses: an unknown key is an error that names the nearest known one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from omegaconf import OmegaConf

from turntree.agents.episodes.hints import read_settings
from turntree.agents.errors import AgentError
from turntree.envs.errors import nearest_hint

T = TypeVar("T")


class ConfigError(AgentError, ValueError):
    """A training configuration has an unknown key or an invalid value."""

    others: tuple[str, ...] = ()
    """Further problems that were found beside this one."""


def logged_error(log: str) -> str | None:
    """What the last ``ConfigError`` in the output of other processes says; ``None`` if there is none."""
    found = re.findall(rf"\b{re.escape(__name__)}\.ConfigError: (.+)$", log, re.MULTILINE)
    return found[-1] if found else None


def unknown_key(key: str, known: Collection[str], where: str) -> ConfigError:
    """The error for ``key``, which is not among ``known`` in section ``where``."""
    return ConfigError(f"unknown key {key!r} in {where}; {nearest_hint(key, sorted(known), 'known keys')}")


def check_keys(keys: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise a ``ConfigError`` for the first of ``keys`` that is not among ``known`` in section ``where``."""
    for key in keys:
        if key not in known:
            raise unknown_key(str(key), known, where)


def from_mapping(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Create the dataclass ``kind`` from ``values``.

    Raises:
        ConfigError: If a key is unknown, a value is not of its field's type, or ``kind`` refuses it.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected keys with values, got {values!r:.60}")
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    check_keys(values, known, where)
    given = {key: value for key, value in values.items() if value is not None or not known[key].startswith("Mapping[")}
    if missing := [f.name for f in fields(kind) if f.name not in given and f.default is MISSING is f.default_factory]:  # type: ignore[arg-type]
        raise ConfigError(f"{where} needs {missing[0]}: give {where}.{missing[0]}")
    try:
        return read_settings(kind, given, where)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def plain(section: Any) -> Any:
    """An OmegaConf section as plain values, interpolations as text; anything else unchanged."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else section
