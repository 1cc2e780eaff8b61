"""The ways to use what was said before, as parts of a training configuration: ``ways=[none,replay]``.

Each is a file of ``configs/ways``. They are laid over a configuration in the order in which they are named, so
``[tree,exact]`` drafts from trees and begins turns with old ones, and ``[none,exact]`` does the latter alone.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.sections import ConfigError, unknown_key


def list_ways() -> tuple[str, ...]:
    """Names of the ways."""
    folder = resources.files("turntree.configs").joinpath("ways")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def with_ways(config: DictConfig, names: Any) -> DictConfig:
    """``config`` with the ways ``names`` over it.

    Raises:
        ConfigError: If ``names`` is no list, or names a way that is unknown.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"ways is a list of names, for example ways=[tree,exact]; got {names!r}")
    folder = resources.files("turntree.configs").joinpath("ways")
    for name in names:
        if name not in list_ways():
            raise unknown_key(name, list_ways(), "ways")
        merged = OmegaConf.merge(config, OmegaConf.create(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8")))
        assert isinstance(merged, DictConfig)
        config = merged
    return config
