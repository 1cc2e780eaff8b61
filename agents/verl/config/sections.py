"""Sections of a configuration: read them into dataclasses, refuse unknown keys, make paths absolute."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from omegaconf import OmegaConf

from turntree.agents.episodes.hints import read_settings
from turntree.agents.errors import AgentError
from turntree.envs.errors import nearest_hint

T = TypeVar("T")
#: keys of verl, turntree and environments whose text may be a path on this machine
_PATH = re.compile(r"(^|_)(path|files?|dir|folder|data|corpus|store)$")


class ConfigError(AgentError, ValueError):
    """A training configuration has an unknown key or an invalid value."""

    others: tuple[str, ...] = ()  #: further problems that were found together with this one


def logged_error(log: str) -> str | None:
    """Return the message of the last ``ConfigError`` in other processes' output, if any."""
    found = re.findall(rf"\b{re.escape(__name__)}\.ConfigError: (.+)$", log, re.MULTILINE)
    return found[-1] if found else None


def unknown_key(key: str, known: Collection[str], where: str) -> ConfigError:
    return ConfigError(f"unknown key {key!r} in {where}; {nearest_hint(key, sorted(known), 'known keys')}")


def check_keys(keys: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise a ``ConfigError`` for the first of ``keys`` that is not in ``known``, with the nearest known key."""
    for key in keys:
        if key not in known:
            raise unknown_key(str(key), known, where)


def from_mapping(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Create the dataclass ``kind`` from ``values``, or raise a ``ConfigError`` that names the key."""
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
    """Return an OmegaConf section as plain values, interpolations as text; anything else unchanged."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else section


def absolute(value: Any, key: str = "", *, model: bool = False) -> Any:
    """Return plain values in which every text that names an existing path is absolute; Hub ids stay.

    Args:
        key: The key of ``value``.
        model: Whether the mapping that holds ``value`` has a key ``engine``; its ``model`` may then be a path.

    >>> absolute({"path": "/tmp/../tmp", "split": "/tmp/../tmp", "data": "openai/gsm8k"})
    {'path': '/tmp', 'split': '/tmp/../tmp', 'data': 'openai/gsm8k'}
    """
    if isinstance(value, Mapping):
        return {name: absolute(inner, str(name), model="engine" in value) for name, inner in value.items()}
    if isinstance(value, list):
        return [absolute(inner, key, model=model) for inner in value]
    if isinstance(value, str) and (_PATH.search(key) or (model and key == "model")):
        # Resolve here, where the user started the training: verl's processes run in the run's folder.
        path = os.path.abspath(os.path.expanduser(value))
        return path if value and os.path.exists(path) else value
    return value
