"""A random state of one episode for libraries that draw from the global one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_GLOBAL = threading.Lock()


class OwnRandomness:
    """The states of Python's and numpy's global generators as one episode sees them; it pickles."""

    def __init__(self, seed: int) -> None:
        """Begin with a seed.

        Args:
            seed: Any integer of at least 0.
        """
        self._state: Any = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put the episode's states in the place of the global ones; one episode at a time."""
        with _GLOBAL:
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
