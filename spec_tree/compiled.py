"""How the kernels are compiled: without the interpreter's lock, kept between processes.

numba keeps what it compiled beside the source, and compiles again when the file
of the function itself has changed. A kernel also contains what it calls in other
files, so here the sources of all kernels together decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, types

float32: Any = types.float32
int64: Any = types.int64
uint32: Any = types.uint32
uint64: Any = types.uint64


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile ``function`` when it is first called, or find what was compiled before; ``options`` as of ``njit``."""
    if function is None:
        return lambda function: kernel(function, **options)
    compiled = njit(nogil=True, cache=True, **options)(function)
    compiled._cache._cache_file._source_stamp = sources()
    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """Paste ``function`` into the kernels that call it."""
    return njit(inline="always")(function)


@cache
def sources() -> str:
    """A digest of the sources that kernels are made of."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_bytes()
        if b"numba" in text or b"compiled import" in text or path.name == "layout.py":
            digest.update(path.name.encode() + text)
    return digest.hexdigest()
