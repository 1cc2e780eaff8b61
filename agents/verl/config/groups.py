"""The groups of options that a training is composed of: engine, size, environment, algorithm, speculation.

An option is a file ``configs/GROUP/OPTION.yaml`` of turntree's keys and verl's. Beside them it may have

- ``base``: its machine, a file of ``configs/base`` (given by a size);
- ``over: GROUP/OPTION``: the option that it only changes;
- ``requires: {GROUP: [OPTION, ...]}``: the options that it is compatible with; others are refused.

Options are merged in the order of ``GROUPS``, the machine first; later ones override.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.sections import ConfigError, unknown_key

BASE = "base"
"""Folder of the machines."""
SPECULATION = "speculation"
"""The group of which several options may be chosen."""
GROUPS: Mapping[str, str] = {
    "engine": "local",
    "size": "tiny",
    "env": "arithmetic",
    "algorithm": "grpo",
    SPECULATION: "tree",
}
"""The default option of each group."""
_NOT_MACHINES = ("common",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of every group; checked to be compatible."""

    base: str
    """Machine: a file of ``configs/base``."""
    engine: str
    """Engine that generates."""
    size: str
    """Size of the policy, and its training hardware."""
    env: str | None
    """Environment; ``None`` if the configuration names one of its own."""
    algorithm: str
    """Algorithm of the update."""
    speculation: tuple[str, ...]
    """Uses of earlier turns, merged in this order."""

    @property
    def name(self) -> str:
        """The options as one name, for folders and experiments.

        >>> Choice(
        ...     base="cpu", engine="local", size="tiny", env="gsm8k", algorithm="ppo", speculation=("none", "exact")
        ... ).name
        'ppo_gsm8k_tiny_local_none_exact'
        """
        return "_".join([self.algorithm, *([self.env] if self.env else []), self.size, self.engine, *self.speculation])

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Group and option in the order in which they are merged."""
        env = [("env", self.env)] if self.env else []
        return (
            *((BASE, self.base), ("engine", self.engine), ("size", self.size), *env, ("algorithm", self.algorithm)),
            *((SPECULATION, name) for name in self.speculation),
        )


def list_options(group: str) -> tuple[str, ...]:
    """Options of a group, or the machines of ``base``."""
    folder = resources.files("turntree.configs").joinpath(group)
    names = (entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return tuple(sorted(name for name in names if group != BASE or name not in _NOT_MACHINES))


def choose(named: Mapping[str, Any], *, base: str | None = None, own_env: bool = False) -> Choice:
    """Complete the named options, and check that they are compatible.

    Args:
        named: Options by group; those of speculation may be a list.
        base: Machine; ``None`` takes that of the size.
        own_env: Whether the configuration itself names an environment, so that the group's default is left out.

    Raises:
        ConfigError: If a group or an option is unknown, or two of them are incompatible.
    """
    for group in named:
        if group not in GROUPS:
            raise unknown_key(group, GROUPS, "groups")
    chosen: dict[str, Any] = {**GROUPS, **({"env": None} if own_env else {}), **named}
    chosen[SPECULATION] = _several(chosen[SPECULATION])
    for group, option in chosen.items():
        for name in option if group == SPECULATION else (option,):
            if not (group == "env" and name is None) and name not in list_options(group):
                raise unknown_key(str(name), list_options(group), group)
    machine = base or _read("size", chosen["size"])[1].get("base")
    if machine not in list_options(BASE):
        raise unknown_key(str(machine), list_options(BASE), "the machines that base may name")
    choice = Choice(base=machine, **chosen)
    _check_together(choice)
    return choice


def merged(choice: Choice) -> DictConfig:
    """The merged options."""
    config = OmegaConf.merge(*(_read(group, option)[0] for group, option in choice.options))
    assert isinstance(config, DictConfig)
    return config


def offered() -> Iterator[Choice]:
    """Every compatible combination of one option per group."""
    names = [list_options(group) for group in GROUPS]
    for options in itertools.product(*names):
        try:
            yield choose(dict(zip(GROUPS, options, strict=True)))
        except Incompatible:
            continue


class Incompatible(ConfigError):
    """Two options that are incompatible."""


def _check_together(choice: Choice) -> None:
    for group, option in choice.options:
        for other, allowed in _read(group, option)[1].get("requires", {}).items():
            for name in (name for kind, name in choice.options if kind == other):
                if name not in allowed:
                    raise Incompatible(
                        f"{group}={option} goes with {other}={' or '.join(allowed)}, got {other}={name}"
                        + (f" (of size={choice.size})" if other == BASE else "")
                    )


def _several(names: Any) -> tuple[Any, ...]:
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, list | tuple) or not names:
        raise ConfigError(f"speculation is a name or a list of names, for example [tree,exact]; got {names!r}")
    return tuple(names)


@lru_cache(maxsize=64)
def _read(group: str, option: str) -> tuple[DictConfig, Mapping[str, Any]]:
    """The keys of an option, and its own ``base`` and ``requires``."""
    path = resources.files("turntree.configs").joinpath(group, f"{option}.yaml")
    config = OmegaConf.create(path.read_text(encoding="utf-8"))
    assert isinstance(config, DictConfig)
    over = config.pop("over", None)
    said: dict[str, Any] = {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for key in ("base", "requires")
        if (value := config.pop(key, None)) is not None
    }
    if over is not None:
        below, below_said = _read(*str(over).split("/"))
        config = OmegaConf.merge(below, config)
        assert isinstance(config, DictConfig)
        said = {**below_said, **said}
    return config, said
