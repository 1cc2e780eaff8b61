"""The option groups of a training: device, engine, size, environment, algorithm, mode, reuse, speculation.

An option is a file ``configs/GROUP/OPTION.yaml`` with turntree's and verl's keys. The defaults list of
``configs/turntree_trainer.yaml`` names one option of each group, and Hydra merges them. Some options work only with
certain options of another group. A defaults list cannot express this, so the file lists these rules under ``requires``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from omegaconf import DictConfig

from turntree.agents.verl.config.defaults_list import Composed, compose_defaults
from turntree.agents.verl.config.sections import ConfigError, plain, unknown_key

TRAINER = "turntree_trainer"  #: the shipped configuration with the default option of each group
DEVICE = "device"
SPECULATION = "speculation"  #: the only group with several options at once
SYNC = "sync"  #: the mode without weight updates during episodes
REUSE = "reuse"
NO_REUSE = "none"
#: in merge order; later groups override
GROUPS = (DEVICE, "engine", "size", "env", "algorithm", "mode", REUSE, SPECULATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of every group; ``speculation`` may have several, merged in order."""

    device: str
    engine: str
    size: str
    env: str | None  #: ``None`` if the configuration names its own environment
    algorithm: str
    mode: str = SYNC
    reuse: str = NO_REUSE
    speculation: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the options as one name, for folders and experiments.

        >>> options = dict(device="cpu", engine="local", size="tiny", env="gsm8k", algorithm="ppo")
        >>> Choice(**options, reuse="same_seed", speculation=("tree", "run_ahead")).name
        'ppo_gsm8k_tiny_local_tree_run_ahead_same_seed'
        """
        parts = [self.algorithm, *([self.env] if self.env else []), self.size, self.engine, *self.speculation]
        parts += [self.reuse] if self.reuse != NO_REUSE else []
        return "_".join([*parts, *([self.mode] if self.mode != SYNC else [])])

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of group and option in merge order."""
        single = ((group, getattr(self, group)) for group in GROUPS if group != SPECULATION)
        return (*((group, name) for group, name in single if name), *((SPECULATION, name) for name in self.speculation))


class Incompatible(ConfigError):
    """Two of the chosen options cannot be combined."""


def list_options(group: str) -> tuple[str, ...]:
    folder = resources.files("turntree.configs").joinpath(group)
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def list_configs() -> tuple[str, ...]:
    return list_options("")


def compose_options(
    own: Mapping[str, Any], named: Mapping[str, Any], *, own_env: bool = False
) -> tuple[DictConfig, Choice]:
    """Compose a configuration from its defaults list, without checking whether its options are compatible.

    Args:
        named: Options by group that replace the defaults list's options; ``env`` of ``None`` leaves that group out.
        own_env: Whether the configuration names its own environment; the default option of ``env`` is then left out.
    """
    texts = {group: [*map(str, value)] if isinstance(value, list) else str(value) for group, value in named.items()}
    overrides = [f"{group}={text!r}" for group, text in texts.items() if (group, named[group]) != ("env", None)]
    without_env = named.get("env", "") is None
    if {*own} == {"defaults"} and all(isinstance(entry, str) for entry in own["defaults"]):
        composed = _shipped((*own["defaults"],), (*overrides,), own_env, without_env)
    else:
        composed = _composed(own, overrides, own_env, without_env)
    # Hydra does not count an option in a list as the choice of its group.
    prefix = f"{SPECULATION}/"
    speculation = tuple(path.removeprefix(prefix) for path in composed.paths if path.startswith(prefix))
    # A copy: the caller modifies the configuration, and ``_shipped`` caches it.
    return deepcopy(composed.config), _choice({**composed.choices, SPECULATION: speculation})


@lru_cache(maxsize=256)
def _shipped(defaults: tuple[str, ...], overrides: tuple[str, ...], own_env: bool, without_env: bool) -> Composed:
    return _composed({"defaults": [*defaults]}, overrides, own_env, without_env)


def _composed(own: Mapping[str, Any], overrides: Sequence[str], own_env: bool, without_env: bool) -> Composed:
    from hydra.errors import HydraException

    try:
        return compose_defaults(own, overrides, own_env=own_env, without_env=without_env)
    except (HydraException, TypeError, ValueError) as error:
        raise _translated(error) from error


def check_compatible(choice: Choice, requires: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ``Incompatible`` if two options are incompatible.

    Args:
        requires: By ``GROUP=OPTION``: the compatible options of other groups, and under ``because`` the reason.
    """
    if conflict := next(_conflicts(choice, requires), None):
        group, option, other, name = conflict
        rules = requires[f"{group}={option}"]
        message = f"{group}={option} needs {other}={' or '.join(rules[other])}, got {other}={name}"
        if other == DEVICE:
            message += f" (set by size={choice.size})"
        message += f": {rules['because']}" if "because" in rules else ""
        if DEVICE in (group, other) or "size" in (group, other):
            sizes = [size for size in list_options("size") if fits(with_size(choice, size), requires)]
            message += f"; sizes that fit: {', '.join(sizes)}" if sizes else ""
        raise Incompatible(message)


def fits(choice: Choice, requires: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the options are compatible; see ``check_compatible``."""
    return next(_conflicts(choice, requires), None) is None


def with_size(choice: Choice, size: str) -> Choice:
    """Return the choice with another shipped size, on that size's device."""
    return replace(choice, size=size, device=compose_options({"defaults": [TRAINER]}, {"size": size})[1].device)


def _conflicts(choice: Choice, requires: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    for group, option in choice.options:
        for other, allowed in requires.get(f"{group}={option}", {}).items():
            for name in (name for kind, name in choice.options if kind == other):
                if name not in allowed:
                    yield group, option, other, name


@lru_cache(maxsize=1)
def offered() -> tuple[Choice, ...]:
    """Return the compatible combinations of shipped options, one option per group."""
    choices = []
    names = [list_options(group) for group in ("engine", "env", "algorithm", "mode")]
    # Speculation and reuse are independent, so each option is only combined with the other group's default.
    uses = [(speculation, NO_REUSE) for speculation in list_options(SPECULATION)]
    uses += [("tree", reuse) for reuse in list_options(REUSE) if reuse != NO_REUSE]
    for size in list_options("size"):
        config, default = compose_options({"defaults": [TRAINER]}, {"size": size})
        requires = plain(config.requires)
        for (engine, env, algorithm, mode), (speculation, reuse) in itertools.product(itertools.product(*names), uses):
            choice = replace(default, engine=engine, env=env, algorithm=algorithm, mode=mode, reuse=reuse)
            choice = replace(choice, speculation=(speculation,))
            if fits(choice, requires):
                choices.append(choice)
    return tuple(choices)


def _choice(chosen: Mapping[str, Any]) -> Choice:
    for group in GROUPS:
        if not chosen.get(group) and group != "env":
            raise ConfigError(
                f"{group} needs one option of {', '.join(list_options(group))}; the defaults list of a file begins "
                f"with {TRAINER}, which sets each group, and only {SPECULATION} may be a list: [tree,run_ahead]"
            )
    options: dict[str, Any] = {group: chosen.get(group) for group in GROUPS}
    return Choice(**options)


def _translated(error: Exception) -> ConfigError:
    missing = getattr(error, "missing_cfg_file", None)
    unused = re.search(r"Could not override '(\w+)", str(error))
    group, _, option = (missing or "").rpartition("/")
    group = unused[1] if unused else group
    if group and group not in GROUPS:
        return unknown_key(group, GROUPS, "the defaults")
    if missing:
        # A frequent mistake: an option of ``reuse`` in the list of ``speculation``.
        if elsewhere := [f"{other}={option}" for other in GROUPS if option in list_options(other)]:
            return ConfigError(f"unknown option {option!r} in {group}; did you mean {' or '.join(elsewhere)}?")
        where = group or "the shipped configurations (a path ends in .yaml)"
        return unknown_key(option, list_options(group), where)
    return ConfigError(f"the defaults cannot be composed: {error}")
