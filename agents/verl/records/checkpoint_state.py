"""A rollout server's part of a trainer's checkpoint: draft store, ledger of stored turns, precomputed turns.

The ledger has the turns of earlier epochs that ``reuse`` replays. Precomputed turns are sampled for a later step
(run-ahead). With these parts a resumed run continues as the uninterrupted run would have. Seeds are not saved, because
they are functions of the run's seed and the step.

One folder holds one server's state. ``write`` creates the folder under a temporary name and renames it once complete.
``state.json`` lists the digest of every file. ``read`` checks every digest and refuses an incomplete folder or a folder
of another version.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turntree.agents.errors import AgentError
from turntree.agents.turn_drafts import precomputed_store
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns
from turntree.agents.turn_drafts.stored import StoredTurns
from turntree.spec_tree import ForestConfig
from turntree.spec_tree.array_file import open_regular, read_array_file, read_regular
from turntree.spec_tree.rules import ledger_arrays
from turntree.spec_tree.store.live_table import known_tokens

FORMAT = 2  #: version of the folder's layout
_MANIFEST, _FOREST, _LEDGER, _AHEAD = "state.json", "forest.npz", "ledger.npz", "run_ahead.npz"
_MAX_BYTES = 1 << 35  #: per file
_MAX_MANIFEST_BYTES = 1 << 16


def state_folder(checkpoint: Path, replica_rank: int) -> Path:
    return checkpoint / "turntree" / f"replica_{replica_rank}"


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"global_step_{step}"


class DamagedCheckpoint(AgentError):
    """A server's part of a checkpoint is incomplete, or has another version."""


class Saved(Protocol):  # an object that can be saved: the draft store, or its proxy
    def save(self, path: Path) -> None: ...

    def restore(self, path: Path) -> None: ...


class ServerState:
    """Saves and loads the part of a server's state that must outlive its process.

    Args:
        vocabulary: Size of the policy's vocabulary; turns with larger token ids are refused. 0 accepts any token id.
        tokenizer: Hash of the policy's tokenizer; checkpoints of another tokenizer are refused. Empty if unknown.
    """

    def __init__(
        self,
        forest: Saved | None,
        stored: StoredTurns | None,
        ahead: PrecomputedTurns | None,
        *,
        vocabulary: int = 0,
        tokenizer: str = "",
    ) -> None:
        self._policy = ForestConfig(vocabulary=vocabulary, tokenizer=tokenizer)
        self._forest = forest
        self._stored = stored
        self._ahead = ahead

    def collect(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the arrays for ``write`` by file name. The turns must not change until ``write`` returns."""
        collected: dict[str, dict[str, NDArray[Any]]] = {}
        if self._stored is not None:
            collected[_LEDGER] = ledger_arrays.ledger_arrays(self._stored.ledger)
        if self._ahead is not None:
            collected[_AHEAD] = precomputed_store.precomputed_arrays(self._ahead.store)
        return collected

    def write(self, folder: Path, collected: Mapping[str, Mapping[str, NDArray[Any]]], *, step: int) -> None:
        """Replace ``folder`` by the state, completely or not at all; ``collected`` is the result of ``collect``."""
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
        partial.mkdir(parents=True)
        try:
            if self._forest is not None:
                self._forest.save(partial / _FOREST)
            for name, arrays in collected.items():
                with (partial / name).open("xb") as file:
                    np.savez(file, **arrays)  # type: ignore[arg-type]
            digests = {path.name: _digest(path) for path in sorted(partial.iterdir())}
            manifest = {"format": FORMAT, "step": step, "tokenizer": self._policy.tokenizer, "files": digests}
            (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            # Sync the files before the rename: a folder under the final name must be complete.
            for path in partial.iterdir():
                _sync(path)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
            _sync(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def read(self, folder: Path, *, step: int) -> None:
        """Load the state that ``write`` stored in ``folder``. Stores that the saved run did not have stay empty.

        Raises:
            DamagedCheckpoint: If the folder is incomplete, or has another version, step or tokenizer. A folder
                without a tokenizer hash is accepted.
        """
        files = _check_folder(folder, step, self._policy)
        try:
            if self._forest is not None and _FOREST in files:
                self._forest.restore(folder / _FOREST)
            if self._stored is not None and _LEDGER in files:
                arrays = self._check_tokens(read_array_file(folder / _LEDGER, ledger_arrays.KINDS, most=_MAX_BYTES))
                ledger_arrays.fill_ledger(self._stored.ledger, arrays)
            if self._ahead is not None and _AHEAD in files:
                max_tokens = self._ahead.config.max_tokens
                arrays = self._check_tokens(read_array_file(folder / _AHEAD, precomputed_store.KINDS, most=_MAX_BYTES))
                self._ahead.store = precomputed_store.precomputed_from_arrays(arrays, max_tokens=max_tokens)
        except ValueError as error:  # every error of a damaged file is a ValueError
            raise _damaged(folder, str(error)) from error

    def _check_tokens(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for tokens in (arrays["tokens"], arrays.get("top_ids", arrays["tokens"])):
            known_tokens(tokens, self._policy.vocabulary)
        return arrays


def _check_folder(folder: Path, step: int, policy: ForestConfig) -> set[str]:
    # Read the manifest first: its format decides whether the other files may be read at all.
    try:
        manifest = json.loads(read_regular(folder / _MANIFEST, most=_MAX_MANIFEST_BYTES))
        version, saved_step, digests = manifest["format"], manifest["step"], dict(manifest["files"])
        tokenizer = str(manifest.get("tokenizer", ""))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(folder, f"{_MANIFEST} cannot be read: {error}") from error
    if version != FORMAT:
        raise _damaged(folder, f"its format is {version}, expected {FORMAT}")
    if saved_step != step:
        raise _damaged(folder, f"its step is {saved_step}, expected {step}")
    try:
        replace(policy, tokenizer=tokenizer).of_policy(0, policy.tokenizer)
    except ValueError as error:
        raise _damaged(folder, str(error)) from error
    for name, digest in digests.items():
        if name not in (_FOREST, _LEDGER, _AHEAD):
            raise _damaged(folder, f"{_MANIFEST} names {name!r}, which this version does not know")
        try:
            actual = _digest(folder / name)
        except FileNotFoundError:
            raise _damaged(folder, f"{name} is missing") from None
        except (OSError, ValueError) as error:
            raise _damaged(folder, f"{name} cannot be read: {error}") from error
        if actual != digest:
            raise _damaged(folder, f"the digest of {name} differs from the one in {_MANIFEST}")
    return set(digests)


def _damaged(folder: Path, problem: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"cannot resume from {folder}: {problem}. Choose an earlier checkpoint with trainer.resume_mode=resume_path "
        "and trainer.resume_from_path, or remove the folder to resume with empty stores"
    )


def _digest(path: Path) -> str:
    with open_regular(path, most=_MAX_BYTES) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
