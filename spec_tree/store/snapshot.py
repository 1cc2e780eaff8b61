"""The file format of a forest.

An uncompressed ``.npz`` without pickles: the finished turns, the settings, the counters, the learnt weights, and a
digest over all of them. The new file is written next to the old file and replaces it when complete, so a crash
leaves one complete file. Reading is bounded (``array_file``) and validates everything.

Not included: live turns, and the index, which is rebuilt.
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
from turntree.spec_tree.config import ForestConfig, config_from_text, config_to_text
from turntree.spec_tree.errors import DamagedFile, DamagedForest
from turntree.spec_tree.kernels.layout import Weights
from turntree.spec_tree.kernels.weights import first_weights, parts
from turntree.spec_tree.store.serialised_turns import KINDS, MOST_COUNT, SerialisedTurns, all_turns, check, check_tokens

logger = logging.getLogger(__name__)

FORMAT = 2  #: version of the file format
_MAGIC = np.frombuffer(b"turntree forest\n", np.uint8)
_MOST_BYTES = 1 << 35  #: maximum bytes of a file, more than the largest forest that the settings allow
_STEP = re.compile(r"global_step_(\d+)")
_SMALL = 1 << 12  #: bytes of a member that may be read before the file is known to be a snapshot
#: dtype and number of dimensions of the arrays that hold neither turns nor weights
_KINDS: dict[str, tuple[DTypeLike, int]] = {
    "magic": (np.uint8, 1),
    "format": (np.int64, 1),
    "config": (np.uint8, 1),
    "counters": (np.int64, 1),
    "digest": (np.uint8, 1),
}

Arrays = dict[str, NDArray[Any]]


class Snapshot(NamedTuple):
    """The saved parts of a forest."""

    config: ForestConfig
    held: SerialisedTurns
    weights: Weights
    counters: NDArray[np.int64]  #: nodes drafted, nodes accepted, tokens committed, shape (3,)


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replace the file by ``snapshot``, or raise ``OSError`` and leave the old file."""
    arrays: Arrays = {
        "magic": _MAGIC,
        "format": np.array([FORMAT], np.int64),
        "config": np.frombuffer(config_to_text(replace(snapshot.config, import_turns="")).encode(), np.uint8),
        "counters": snapshot.counters,
        **{f"held_{name}": array for name, array in snapshot.held._asdict().items()},
        **{f"weights_{name}": array for name, array in parts(snapshot.weights).items()},
    }
    # In the same folder: `os.replace` is atomic only within one file system.
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
    """Return the snapshot that ``write_snapshot`` wrote; ``own`` replaces the saved settings.

    Raises:
        DamagedForest: If the file is not a snapshot, is incomplete, or belongs to another version or tokenizer.
    """
    try:
        with open_regular(path, most=_MOST_BYTES) as file:
            snapshot = _snapshot(ArrayFile(file))
    except ValueError as error:
        raise DamagedForest(
            f"{path} is not a forest that this version can load: {error}. Load another copy, or start with an empty "
            "forest and save it to this path"
        ) from error
    saved = snapshot.config
    if own is None:
        own = saved
    elif own.tokenizer and not saved.tokenizer:
        logger.warning("%s has no tokenizer hash (older versions saved none): its turns count as this policy's", path)
    try:
        known = saved.of_policy(own.vocabulary, own.tokenizer)
        check_tokens(snapshot.held, known.vocabulary)
    except ValueError as error:
        raise DamagedForest(f"{path} does not belong to this policy: {error}") from error
    return snapshot._replace(config=own.of_policy(known.vocabulary, known.tokenizer))


def read_imported(path: Path, own: ForestConfig) -> list[tuple[NDArray[np.uint64], NDArray[np.int32]]]:
    """Return the turns of a saved forest, or of the forests in a folder, with their back-off keys.

    If a folder contains files named ``forest.npz``, as a run's checkpoints do, the files of the last step are read;
    otherwise all its files that end in ``.npz``. Each file's turns are returned oldest first. Turns that several files
    contain (replicas share turns) are returned once.

    Raises:
        DamagedForest: If there is no forest, or for a reason that ``read_snapshot`` lists.
    """
    files = _store_files(path) if path.is_dir() else [path]
    if not files:
        raise DamagedForest(f"there is no draft store in the folder {path}: expected a file of SpecForest.save")
    turns: list[tuple[NDArray[np.uint64], NDArray[np.int32]]] = []
    known: set[tuple[bytes, bytes]] = set()
    for file in files:
        held = list(all_turns(read_snapshot(file, own).held))
        keys = [(backoff_states.tobytes(), sampled.tobytes()) for backoff_states, sampled in held]
        turns += [turn for key, turn in zip(keys, held, strict=True) if key not in known]
        known.update(keys)
    return turns


def _store_files(folder: Path) -> list[Path]:
    # Raise errors of subfolders: an unreadable folder may hold the last step.

    def refuse(error: OSError) -> None:
        raise error

    files = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]  # checkpoints being written
        files += [Path(parent) / name for name in names if name == "forest.npz"]
    steps = {file: [int(number) for number in _STEP.findall(str(file.parent))][-1:] for file in sorted(files)}
    last = max(steps.values(), default=[])
    return [file for file, step in steps.items() if step == last] or sorted(folder.glob("[!.]*.npz"))


def _snapshot(file: ArrayFile) -> Snapshot:
    # Check magic and version first, so that no more is read of a file of another kind.
    small = {name: file.read(name).tolist() for name, member in file.members.items() if member.size < _SMALL}
    if small.get("magic") != _MAGIC.tolist():
        raise DamagedFile("it is a file of another kind: expected the mark of a saved forest")
    version = small.get("format", [])
    if version != [FORMAT]:
        raise DamagedFile(f"it has format {version}, expected [{FORMAT}]")
    learnt = first_weights()
    held = dict(zip(_names("held", SerialisedTurns._fields), KINDS, strict=True))
    weights = dict(zip(_names("weights", parts(learnt)), parts(learnt).values(), strict=True))
    kinds: dict[str, tuple[DTypeLike, int]] = {**_KINDS, **held}
    hot_tokens = file.members.get("held_hot_tokens")
    if hot_tokens is not None and hot_tokens.dtype == np.uint16:
        kinds["held_hot_tokens"] = (np.uint16, 1)
    arrays = file.read_all(kinds | {name: (template.dtype, template.ndim) for name, template in weights.items()})
    if not np.array_equal(arrays.pop("digest"), digest(arrays)):
        raise DamagedFile("its contents do not match its digest")
    for name, template in weights.items():
        if arrays[name].shape != template.shape or not np.isfinite(arrays[name]).all():
            raise DamagedFile(
                f"{name} has shape {arrays[name].shape}, expected finite numbers of shape {template.shape}"
            )
        template[...] = arrays[name]
    counters = arrays["counters"]
    if counters.shape != (3,) or counters.min() < 0 or counters.max() > MOST_COUNT:
        raise DamagedFile(f"it has {len(counters)} counters, expected 3 of at least 0")
    turns = SerialisedTurns(*(arrays[name] for name in held))
    config = config_from_text(arrays["config"].tobytes())
    check(turns)
    return Snapshot(config, turns, learnt, counters)


def digest(arrays: Arrays) -> NDArray[np.uint8]:
    """Return the digest of names, dtypes, shapes and contents, in the order of the names, shape (32,)."""
    hashed = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hashed.update(f"{name} {array.dtype.str} {arrays[name].shape}\n".encode())
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(hashed.digest(), np.uint8)


def _names(prefix: str, fields: Iterable[str]) -> list[str]:
    return [f"{prefix}_{field}" for field in fields]


def _sync_folder(folder: Path) -> None:
    # Sync the folder, so that the new file name survives a power failure.
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
