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

import numba
from numba import types

float32: Any = types.float32
int32: Any = types.int32
int64: Any = types.int64
uint32: Any = types.uint32
uint64: Any = types.uint64

_njit: Any = numba.njit
_OPTIONS = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True, "error_model": "numpy"}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function`` when it is first called, or find what was compiled before.

    References to arrays are not counted, which takes more than half of a draft's time: the caller holds them, and
    no kernel makes an array.
    """
    return _stamped(_njit(cache=True, **_OPTIONS)(function))


def short_kernel(function: Callable[..., Any]) -> Any:
    """As ``kernel``, with the interpreter's lock: for what takes less time than to get the lock back would."""
    return _stamped(_njit(cache=True, **{**_OPTIONS, "nogil": False})(function))


def _stamped(compiled: Any) -> Any:
    compiled._cache._cache_file._source_stamp = sources()
    return compiled


def part(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile ``function`` into the kernels that call it; ``options`` as of ``njit``.

    It has no wrapper, which halves the time of compilation: a call from the interpreter is a crash.
    """
    if function is None:
        return lambda function: part(function, **options)
    return _njit(no_cpython_wrapper=True, **_OPTIONS, **options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Paste ``function`` into the kernels that call it."""
    return part(function, forceinline=True)


def inlined_fast(function: Callable[..., Any]) -> Any:
    """As ``inlined``, and sums of real numbers may be taken in any order."""
    return part(function, forceinline=True, fastmath=True)


@inlined
def index(number: int) -> int:
    """``number``, from 0 to 2**32 - 1, as an index: numba leaves out what it does for negative ones."""
    same: int = int64(uint32(number))
    return same


@cache
def sources() -> str:
    """A digest of the sources that kernels are made of."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        if b"numba" in text or b"compiled import" in text or path.name == "layout.py":
            digest.update(str(path.relative_to(root)).encode() + text)
    return digest.hexdigest()
