"""Use of other libraries by the bridges: imports, isolated random states, and failures for their trainers."""

from __future__ import annotations

import importlib
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from turntree.envs.errors import EnvError, MissingExtra, pip_install


def library(module: str, package: str) -> ModuleType:
    """Import an optional library, or raise an error that names the package to install.

    Raises:
        MissingExtra: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"this bridge needs {package} ({error}): {pip_install(package)}") from error


class EpisodeFailure(EnvError):
    """The infrastructure failed. Raised, instead of a reward of 0, for trainers that cannot leave an episode out."""


def require_verdict(info: Mapping[str, Any]) -> None:
    """Raise ``EpisodeFailure`` if the ``info`` of ``Env.step`` reports an infrastructure failure."""
    if info["failure"]:
        raise EpisodeFailure(f"task {info['task_id']}: {info['failure']}")


_GLOBAL = threading.Lock()  # the global random states belong to one episode at a time


class OwnRandomness:
    """One episode's copy of the global random states, for libraries that draw from these; can be pickled."""

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use the episode's states of Python's and NumPy's generators inside ``with``; one episode at a time."""
        with _GLOBAL:
            # The caller's states are restored afterwards, so an episode does not change other code's random numbers.
            kept = random.getstate(), np.random.get_state()
            _put(self._state)
            try:
                yield
            finally:
                self._state = random.getstate(), np.random.get_state()
                _put(kept)


def _put(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
