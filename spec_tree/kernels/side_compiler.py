"""A second process that compiles a part of the kernels, so that the first compilation takes half the time.

What it compiles is kept where numba keeps all that it compiled, and found there.

    python -m turntree.spec_tree.kernels.side_compiler
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numba

from turntree.spec_tree.kernels.batch import move_on
from turntree.spec_tree.kernels.candidates import find_places
from turntree.spec_tree.kernels.compiled import float32, int32, int64, is_kept
from turntree.spec_tree.kernels.growth import SCRATCH, grow
from turntree.spec_tree.kernels.layout import GRANULE, LIVE_TURN, WEIGHTS, context_log, token_log, turn_keys

SHARE = (grow, move_on)
"""What the second process compiles, in this order."""
PATIENCE = 60.0
"""Seconds after which it is not waited for any more."""
_LOOK = 0.02
"""Seconds between looks at what it has done."""


class SideCompiler:
    """Runs the second process, unless its share has been compiled before, until the block is left."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._until = 0.0

    def __enter__(self) -> SideCompiler:
        if sys.executable and not all(map(is_kept, SHARE)):
            self._until = time.monotonic() + PATIENCE
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for(self, function: Any) -> None:
        """Wait until ``function`` of ``SHARE`` is compiled; where the process ends before or stalls, return."""
        while not is_kept(function) and self.works():
            time.sleep(_LOOK)

    def works(self) -> bool:
        """Whether the process is at work, and not for too long."""
        return self._process is not None and self._process.poll() is None and time.monotonic() < self._until


def signatures() -> dict[Any, tuple[Any, ...]]:
    """What ``SHARE`` and ``find_places`` are called with, as numba's types."""
    live, weights, work = (numba.from_dtype(kind) for kind in (LIVE_TURN, WEIGHTS, SCRATCH))
    log, turns, contexts = (numba.typeof(empty) for empty in (token_log(GRANULE), turn_keys(1), context_log(1)))
    rows, tokens, reals = int64[::1], int32[::1], float32[::1]
    budget = (int64, int64, numba.float64, numba.boolean)
    return {
        find_places: (live, int64, log, turns, contexts, work),
        grow: (live, *budget, tokens, log, turns, contexts, weights, work, int64, tokens, tokens, tokens, reals),
        move_on: (rows, tokens, rows, live[::1], log, contexts, weights[::1], rows),
    }


def main() -> None:
    """Compile what the second process is for."""
    of = signatures()
    for function in SHARE:
        function.compile(of[function])


if __name__ == "__main__":
    main()
