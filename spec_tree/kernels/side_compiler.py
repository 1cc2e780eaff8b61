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
import numpy as np

from turntree.spec_tree.kernels import layout
from turntree.spec_tree.kernels.batch import move_on
from turntree.spec_tree.kernels.candidates import find_places
from turntree.spec_tree.kernels.compiled import int64, is_kept
from turntree.spec_tree.kernels.growth import SCRATCH, grow

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
    live, weights, work = (numba.from_dtype(kind) for kind in (layout.LIVE_TURN, layout.WEIGHTS, SCRATCH))
    rows, tokens, paths = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
    log = layout.token_log(layout.GRANULE)
    sources = layout.DraftSources(log=log, turns=layout.turn_keys(1), contexts=layout.context_log(1))
    limits = layout.DraftLimits(budget=1, floor=0.0, chain=True, ends=tokens)
    out = layout.DraftNodes(tokens=tokens, parents=tokens, depths=tokens, paths=paths)
    asked, found, drafted = (numba.typeof(value) for value in (limits, sources, out))
    sampled, places = numba.typeof(tokens), numba.typeof(rows)
    return {
        find_places: (live, int64, found, work),
        grow: (live, int64, asked, found, weights, work, drafted),
        move_on: (places, sampled, places, live[::1], found, weights[::1], places),
    }


def main() -> None:
    """Compile what the second process is for."""
    of = signatures()
    for function in SHARE:
        function.compile(of[function])


if __name__ == "__main__":
    main()
