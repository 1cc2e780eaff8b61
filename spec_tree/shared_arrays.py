"""The arrays of a forest in one block of shared memory, found by its name.

The block begins with a mark, a version, and a text that names the settings and
every array. Whoever attaches compares that with what its own version expects,
since the kernels trust the shapes. The mark is written last.

Who creates a block unlinks it; who attaches never does. Arrays stay valid after
that for as long as somebody holds them.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import threading
from collections.abc import Sequence, Sized
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.config_text import config_from_text, config_to_text
from turntree.spec_tree.errors import DamagedForest, ForestError
from turntree.spec_tree.layout import WEIGHTS, TokenLog, TurnKeys, Weights, token_log, turn_keys
from turntree.spec_tree.weights import first_weights

_MAGIC = b"turntree"
_VERSION = 2
_HEAD = struct.Struct("<8sIIq")
"""Mark, version, bytes of the text behind it, and whether the writer has closed."""
_CLOSED_AT = 16
_ALIGN = 64
_ATTACHING = threading.Lock()

_Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of each array."""


class ForestArrays(NamedTuple):
    """What drafts are made from."""

    log: TokenLog
    """What was said, and its index."""
    keys: TurnKeys
    """Whose it is."""
    weights: Weights
    """What was learnt."""

    def flat(self) -> dict[str, NDArray[Any]]:
        """The arrays by name."""
        return {
            **{f"log.{name}": array for name, array in self.log._asdict().items()},
            "keys": self.keys,
            "weights": self.weights,
        }


class SharedArrays:
    """A block and the arrays in it."""

    def __init__(self, block: SharedMemory, config: ForestConfig, layout: _Layout, text: int) -> None:
        """Look at ``block``, whose header ends with ``text`` bytes; ``create`` and ``attach`` make one."""
        self.block = block
        """The memory."""
        self.config = config
        """Settings of the forest."""
        whole = np.frombuffer(_memory(block), np.uint8)  # unlike np.ndarray, it keeps the memory from being unmapped
        starts, _ = _starts(layout, text)
        self.arrays = _grouped(
            [
                whole[start : start + _bytes(dtype, shape)].view(_dtype(dtype)).reshape(shape)
                for start, (dtype, shape) in zip(starts, layout.values(), strict=True)
            ]
        )
        """Views of the memory."""

    @classmethod
    def create(cls, config: ForestConfig, arrays: ForestArrays, name: str | None) -> SharedArrays:
        """Copy ``arrays`` into a new block; without a name it gets one that is free.

        Raises:
            ForestError: If the name is taken, or there is too little shared memory.
        """
        layout = {key: (_told(array.dtype), array.shape) for key, array in arrays.flat().items()}
        text = json.dumps({"config": config_to_text(config), "arrays": layout}).encode()
        _, size = _starts(layout, len(text))
        try:
            block = _Block(name, create=True, size=size)
        except FileExistsError:
            raise ForestError(
                f"the name {name!r} of shared memory is taken: expected a free one; close the forest that has it, "
                "or choose another name"
            ) from None
        try:
            _reserve(block, size)
        except OSError as error:
            _discard(block)
            raise ForestError(
                f"{size} bytes of shared memory are needed, and could not be had ({error}): lower "
                "ForestConfig.max_tokens, or allow more shared memory"
            ) from error
        _HEAD.pack_into(_memory(block), 0, bytes(8), _VERSION, len(text), 0)
        _memory(block)[_HEAD.size : _HEAD.size + len(text)] = text
        shared = cls(block, config, layout, len(text))
        shared.fill(arrays)
        _memory(block)[: len(_MAGIC)] = _MAGIC
        return shared

    @classmethod
    def attach(cls, name: str) -> SharedArrays:
        """Look at the block that another process made.

        Raises:
            ForestError: If there is none of this name.
            DamagedForest: If it holds no forest, or one of another version.
        """
        try:
            block = _open(name)
        except FileNotFoundError:
            raise ForestError(
                f"no shared memory is named {name!r}: expected the name of a SharedForest that is open; check the "
                "name and that the forest's process runs"
            ) from None
        except ValueError as error:
            raise _foreign(name, str(error)) from None
        try:
            return cls(block, *_read_header(name, block))
        except DamagedForest:
            block.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the writer has closed."""
        return bool(_memory(self.block)[_CLOSED_AT])

    def fill(self, arrays: ForestArrays) -> None:
        """Copy ``arrays`` into the block."""
        for target, source in zip(self.arrays.flat().values(), arrays.flat().values(), strict=True):
            target[...] = source


def release(block: SharedMemory, owner: int) -> None:
    """Mark a block as closed and take its name away, if this is the process ``owner`` that made it."""
    if os.getpid() == owner:
        _memory(block)[_CLOSED_AT] = 1
        _discard(block)


def _memory(block: SharedMemory) -> memoryview:
    assert block.buf is not None, "the block was closed"
    return block.buf


class _Block(SharedMemory):
    """Memory that is given back when the last array in it is."""

    def close(self) -> None:
        with suppress(BufferError):
            super().close()


def _discard(block: SharedMemory) -> None:
    with suppress(FileNotFoundError):
        block.unlink()
    block.close()


def _open(name: str) -> SharedMemory:
    """An existing block that Python does not unlink when this process ends."""
    if sys.version_info >= (3, 13):
        return _Block(name, track=False)
    with _ATTACHING:
        register = resource_tracker.register

        def but_blocks(name: Sized, rtype: str) -> None:
            if rtype != "shared_memory":
                register(name, rtype)

        resource_tracker.register = but_blocks
        try:
            return _Block(name)
        finally:
            resource_tracker.register = register


def _reserve(block: SharedMemory, size: int) -> None:
    """Fail now if there is too little memory, where the system would kill whoever writes."""
    path = f"/dev/shm/{block.name}"
    if not hasattr(os, "posix_fallocate") or not os.path.exists(path):
        return
    handle = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def _starts(layout: _Layout, text: int) -> tuple[list[int], int]:
    """Where each array begins, and how long the block is."""
    starts, end = [], _HEAD.size + text
    for dtype, shape in layout.values():
        start = -(-end // _ALIGN) * _ALIGN
        starts.append(start)
        end = start + _bytes(dtype, shape)
    return starts, end


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return _dtype(dtype).itemsize * math.prod(shape)


def _told(dtype: np.dtype[Any]) -> str:
    """A text for a dtype, with its fields."""
    return dtype.str if dtype.names is None else str(dtype.descr)


def _dtype(told: str) -> np.dtype[Any]:
    return WEIGHTS if told == _told(WEIGHTS) else np.dtype(told)


def _grouped(arrays: Sequence[NDArray[Any]]) -> ForestArrays:
    *log, keys, weights = arrays
    return ForestArrays(TokenLog(*log), keys, weights)


def _read_header(name: str, block: SharedMemory) -> tuple[ForestConfig, _Layout, int]:
    if block.size < _HEAD.size or bytes(_memory(block)[: len(_MAGIC)]) != _MAGIC:
        raise _foreign(name, "it does not begin with the mark of a forest")
    _, version, length, _ = _HEAD.unpack_from(_memory(block))
    if version != _VERSION:
        raise _foreign(name, f"it has version {version}, expected {_VERSION}")
    try:
        header = json.loads(bytes(_memory(block)[_HEAD.size : _HEAD.size + length]))
        config = config_from_text(header["config"])
        layout = {key: (str(dtype), tuple(shape)) for key, (dtype, shape) in header["arrays"].items()}
        expected = _expected(layout["log.tokens"][1][0], layout["keys"][1][0])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise _foreign(name, f"its header cannot be read: {error!r}") from error
    for key in [*expected, *layout]:
        if layout.get(key) != expected.get(key):
            raise _foreign(name, f"{key} is laid out as {layout.get(key)}, expected {expected.get(key)}")
    if list(layout) != list(expected):
        raise _foreign(name, "its arrays stand in another order")
    _, size = _starts(layout, length)
    if block.size < size:
        raise _foreign(name, f"it has {block.size} bytes, expected {size}")
    return config, layout, length


def _expected(capacity: int, slots: int) -> _Layout:
    """The layout that this version has for so many positions and slots."""

    def outline(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return as_strided(np.zeros(1, dtype), shape, (0,) * len(shape))

    arrays = ForestArrays(token_log(capacity, allocate=outline), turn_keys(slots, allocate=outline), first_weights())
    return {key: (_told(array.dtype), array.shape) for key, array in arrays.flat().items()}


def _foreign(name: str, why: str) -> DamagedForest:
    return DamagedForest(
        f"the shared memory {name!r} is no forest that this version can read: {why}. Attach to the name of a "
        "SharedForest of the same version of turntree"
    )
