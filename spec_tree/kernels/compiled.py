"""Decorators that compile the kernels with numba and cache them on disk.

numba's cache only notices a change in the file of the kernel itself. A kernel also contains functions of
other files, so these decorators key the cache by a digest of all kernel sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import types

float32: Any = types.float32
int32: Any = types.int32
int64: Any = types.int64
uint32: Any = types.uint32
uint64: Any = types.uint64

_njit: Any = numba.njit
_OPTIONS = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True, "error_model": "numpy"}


# ``_nrt=False``: no reference counts for arrays, which would take more than half of a draft's time. This is safe:
# the caller keeps the arrays alive, and no kernel allocates an array.
def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function`` on its first call, without the GIL, or load it from the cache."""
    return _stamped(_njit(cache=True, **_OPTIONS)(function))


def short_kernel(function: Callable[..., Any]) -> Any:
    """Compile as ``kernel`` does, but keep the GIL: for work shorter than reacquiring it."""
    return _stamped(_njit(cache=True, **{**_OPTIONS, "nogil": False})(function))


def _stamped(compiled: Any) -> Any:
    compiled._cache._cache_file._source_stamp = sources()
    return compiled


def part(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile ``function`` only as a part of the kernels that call it; ``options`` go to ``njit``.

    There is no Python wrapper, which halves the compile time. Calling ``function`` from Python crashes the process.
    """
    if function is None:
        return lambda function: part(function, **options)
    return _njit(no_cpython_wrapper=True, **_OPTIONS, **options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    return part(function, forceinline=True)


def inlined_fast(function: Callable[..., Any]) -> Any:
    # fastmath lets the compiler reorder floating-point sums
    return part(function, forceinline=True, fastmath=True)


@inlined
def index(number: int) -> int:
    """Return ``number`` (0 to 2**32 - 1) as an index for which numba emits no negative-index code."""
    same: int = int64(uint32(number))
    return same


@cache
def sources() -> str:
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        # layout.py has no kernel, but its dtypes and constants are compiled into the kernels.
        if b"numba" in text or b"compiled import" in text or path.name == "layout.py":
            digest.update(str(path.relative_to(root)).encode() + text)
    return digest.hexdigest()
