"""The file format of a forest.

The file is an uncompressed ``.npz`` without pickles: the finished turns, the
settings, the counters, the learnt weights, and a digest over all of it. It is
written beside the old file and replaces it when it is complete, so that a
crash leaves one or the other. Files are validated on reading: a file that
is incomplete, not a snapshot or of another format is rejected.

Live turns are not covered, nor is the index, which is rebuilt.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.config_text import config_from_text, config_to_text
from turntree.spec_tree.errors import DamagedForest
from turntree.spec_tree.kernels.layout import Weights
from turntree.spec_tree.kernels.weights import first_weights, parts
from turntree.spec_tree.store.holdings import Holdings, check

FORMAT = 2
"""Version of the file's format."""
_MAGIC = np.frombuffer(b"turntree forest\n", np.uint8)

Arrays = dict[str, NDArray[Any]]


class Snapshot(NamedTuple):
    """The saved parts of a forest."""

    config: ForestConfig
    """Its settings."""
    held: Holdings
    """Its finished turns."""
    weights: Weights
    """Its learnt weights."""
    counters: NDArray[np.int64]
    """Nodes drafted, nodes accepted, tokens committed, shape (3,)."""


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replace ``path`` by ``snapshot``, or leave it as it is.

    Raises:
        OSError: If the file cannot be written; the old one stays.
    """
    arrays: Arrays = {
        "magic": _MAGIC,
        "format": np.array([FORMAT], np.int64),
        "config": np.frombuffer(config_to_text(snapshot.config).encode(), np.uint8),
        "counters": snapshot.counters,
        **{f"held_{name}": array for name, array in snapshot.held._asdict().items()},
        **{f"weights_{name}": array for name, array in parts(snapshot.weights).items()},
    }
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            named: dict[str, Any] = {**arrays, "digest": digest(arrays)}
            np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot that ``write_snapshot`` wrote to ``path``.

    Raises:
        DamagedForest: If the file is not a snapshot, incomplete, or of another version.
        OSError: If it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays: Arrays = {name: archive[name] for name in archive.files}
        except Exception as error:  # zipfile and numpy raise a dozen kinds on damaged files
            raise _damaged(path, f"it cannot be read as .npz: {error or type(error).__name__}") from error
    if "magic" not in arrays or not np.array_equal(arrays["magic"], _MAGIC):
        raise _damaged(path, "it is a file of another kind: expected the mark of a forest's snapshot")
    version = arrays.get("format", np.zeros(0)).tolist()
    if version != [FORMAT]:
        raise _damaged(path, f"it has format {version}, expected [{FORMAT}]")
    learnt = first_weights()
    held, weights = _names("held", Holdings._fields), _names("weights", parts(learnt))
    expected = {"magic", "format", "config", "counters", "digest", *held, *weights}
    if arrays.keys() != expected:
        different = ", ".join(sorted(arrays.keys() ^ expected))
        raise _damaged(path, f"it lacks entries or has unknown ones: {different}")
    if not np.array_equal(arrays.pop("digest"), digest(arrays)):
        raise _damaged(path, "its contents do not match its digest")
    for name, like in zip(weights, parts(learnt).values(), strict=True):
        if (arrays[name].shape, arrays[name].dtype) != (like.shape, like.dtype):
            came = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise _damaged(path, f"{name} is {came}, expected {like.dtype} of shape {like.shape}")
    if arrays["counters"].shape != (3,) or arrays["counters"].dtype != np.int64:
        raise _damaged(path, f"it has {arrays['counters'].size} counters, expected 3")
    turns = Holdings(*(arrays[name] for name in held))
    try:
        config = config_from_text(arrays["config"].tobytes())
        check(turns)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    for name, like in zip(weights, parts(learnt).values(), strict=True):
        like[...] = arrays[name]
    return Snapshot(config, turns, learnt, arrays["counters"])


def digest(arrays: Arrays) -> NDArray[np.uint8]:
    """Digest of names, dtypes, shapes and contents, in the order of the names, shape (32,)."""
    told = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        told.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        told.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(told.digest(), np.uint8)


def _names(prefix: str, fields: Iterable[str]) -> list[str]:
    return [f"{prefix}_{field}" for field in fields]


def _damaged(path: Path, why: str) -> DamagedForest:
    return DamagedForest(
        f"{path} is no forest that this version can load: {why}. Load another copy, or start with an empty "
        "forest and save that in its place"
    )


def _sync_folder(folder: Path) -> None:
    """Make the new name of a file survive a power failure."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
