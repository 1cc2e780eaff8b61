"""The file format of a forest.

The file is an uncompressed ``.npz`` without pickles: the finished turns, the
settings, the counters, the learnt weights, and a digest over all of it. It is
written beside the old file and replaces it when it is complete, so that a
crash leaves one or the other. Files are read within bounds (``array_file``) and
validated: one that is incomplete, not a snapshot or of another format is rejected.

Live turns are not covered, nor is the index, which is rebuilt.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.spec_tree.array_file import ArrayFile, open_regular
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.config_text import config_from_text, config_to_text
from turntree.spec_tree.errors import DamagedFile, DamagedForest
from turntree.spec_tree.kernels.layout import Weights
from turntree.spec_tree.kernels.weights import first_weights, parts
from turntree.spec_tree.store.serialised_turns import KINDS, MOST_COUNT, SerialisedTurns, all_turns, check, check_tokens

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the file's format."""
_MAGIC = np.frombuffer(b"turntree forest\n", np.uint8)
_MOST_BYTES = 1 << 35
"""Of a file: more than the largest forest that settings allow."""
_STEP = re.compile(r"global_step_(\d+)")
_SMALL = 1 << 12
"""Bytes of a member that may be looked at before it is known to be the expected one."""
_KINDS: dict[str, tuple[DTypeLike, int]] = {
    "magic": (np.uint8, 1),
    "format": (np.int64, 1),
    "config": (np.uint8, 1),
    "counters": (np.int64, 1),
    "digest": (np.uint8, 1),
}
"""dtypes and dimensions of what is beside the turns and the weights."""

Arrays = dict[str, NDArray[Any]]


class Snapshot(NamedTuple):
    """The saved parts of a forest."""

    config: ForestConfig
    held: SerialisedTurns
    weights: Weights
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
        "config": np.frombuffer(config_to_text(replace(snapshot.config, import_turns="")).encode(), np.uint8),
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


def read_snapshot(path: Path, own: ForestConfig | None = None) -> Snapshot:
    """The snapshot that ``write_snapshot`` wrote to ``path``.

    Args:
        own: Settings to have instead of the saved ones.

    Raises:
        DamagedForest: If the file is not a snapshot, incomplete, of another version, or of a policy with other tokens.
        OSError: If it cannot be read.
    """
    try:
        with open_regular(path, most=_MOST_BYTES) as file:
            snapshot = _snapshot(ArrayFile(file))
    except ValueError as error:
        raise DamagedForest(
            f"{path} is no forest that this version can load: {error}. Load another copy, or start with an empty "
            "forest and save that in its place"
        ) from error
    saved = snapshot.config
    if own is None:
        own = saved
    elif own.tokenizer and not saved.tokenizer:
        logger.warning("%s has no hash of a tokenizer, as older versions saved none: its turns count as ours", path)
    try:
        known = saved.of_policy(own.vocabulary, own.tokenizer)
        check_tokens(snapshot.held, known.vocabulary)
    except ValueError as error:
        raise DamagedForest(f"{path} is not of this policy: {error}") from error
    return snapshot._replace(config=own.of_policy(known.vocabulary, known.tokenizer))


def read_imported(path: Path, own: ForestConfig) -> list[tuple[NDArray[np.uint64], NDArray[np.int32]]]:
    """The turns of a file of ``write_snapshot``, or of those in a folder, with the backoff_lists of their states.

    Args:
        path: The file, or a folder: of the stores named ``forest.npz`` anywhere in it, as a run's checkpoints have
            them, those of the last step; else of all files in it that end in ``.npz``.

    Returns:
        The turns, the oldest of each file first. Replicas share turns: of what several files have, one is given.

    Raises:
        DamagedForest: If there is none, or as ``read_snapshot``.
        OSError: If one cannot be read.
    """
    files = _stores(path) if path.is_dir() else [path]
    if not files:
        raise DamagedForest(f"there is no store of turns in the folder {path}: expected a file of SpecForest.save")
    turns: list[tuple[NDArray[np.uint64], NDArray[np.int32]]] = []
    known: set[tuple[bytes, bytes]] = set()
    for file in files:
        found = list(all_turns(read_snapshot(file, own).held))
        names = [(backoff_states.tobytes(), said.tobytes()) for backoff_states, said in found]
        turns += [turn for name, turn in zip(names, found, strict=True) if name not in known]
        known.update(names)
    return turns


def _stores(folder: Path) -> list[Path]:
    """The files of stores in a folder; see ``read_imported``.

    Raises:
        OSError: If a folder in it cannot be read: its store may be the last.
    """

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]  # those are half written
        found += [Path(place) / name for name in names if name == "forest.npz"]
    steps = {file: [int(number) for number in _STEP.findall(str(file.parent))][-1:] for file in sorted(found)}
    last = max(steps.values(), default=[])
    return [file for file, step in steps.items() if step == last] or sorted(folder.glob("[!.]*.npz"))


def _snapshot(file: ArrayFile) -> Snapshot:
    """The snapshot in a file.

    Raises:
        ValueError: If it is none.
    """
    small = {name: file.read(name).tolist() for name, one in file.members.items() if one.size < _SMALL}
    if small.get("magic") != _MAGIC.tolist():
        raise DamagedFile("it is a file of another kind: expected the mark of a forest's snapshot")
    version = small.get("format", [])
    if version != [FORMAT]:
        raise DamagedFile(f"it has format {version}, expected [{FORMAT}]")
    learnt = first_weights()
    held = dict(zip(_names("held", SerialisedTurns._fields), KINDS, strict=True))
    weights = dict(zip(_names("weights", parts(learnt)), parts(learnt).values(), strict=True))
    kinds: dict[str, tuple[DTypeLike, int]] = {**_KINDS, **held}
    narrow = file.members.get("held_hot_tokens")
    if narrow is not None and narrow.dtype == np.uint16:
        kinds["held_hot_tokens"] = (np.uint16, 1)
    arrays = file.read_all(kinds | {name: (like.dtype, like.ndim) for name, like in weights.items()})
    if not np.array_equal(arrays.pop("digest"), digest(arrays)):
        raise DamagedFile("its contents do not match its digest")
    for name, like in weights.items():
        if arrays[name].shape != like.shape or not np.isfinite(arrays[name]).all():
            raise DamagedFile(f"{name} has shape {arrays[name].shape}, expected finite numbers of shape {like.shape}")
        like[...] = arrays[name]
    counters = arrays["counters"]
    if counters.shape != (3,) or counters.min() < 0 or counters.max() > MOST_COUNT:
        raise DamagedFile(f"it has {len(counters)} counters, expected 3 of at least 0")
    turns = SerialisedTurns(*(arrays[name] for name in held))
    config = config_from_text(arrays["config"].tobytes())
    check(turns)
    return Snapshot(config, turns, learnt, counters)


def digest(arrays: Arrays) -> NDArray[np.uint8]:
    """Digest of names, dtypes, shapes and contents, in the order of the names, shape (32,)."""
    hashed = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hashed.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(hashed.digest(), np.uint8)


def _names(prefix: str, fields: Iterable[str]) -> list[str]:
    return [f"{prefix}_{field}" for field in fields]


def _sync_folder(folder: Path) -> None:
    """Make the new name of a file survive a power failure."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
