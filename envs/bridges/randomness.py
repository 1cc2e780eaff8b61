from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_GLOBAL = threading.Lock()


class OwnRandomness:
    """One episode's copy of the global random states, for libraries that draw from them; it pickles."""

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Swap in the episode's states of Python's and NumPy's generators; one episode at a time."""
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
