from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.errors import UnknownTurn
from turntree.spec_tree.kernels import batch as kernels
from turntree.spec_tree.kernels.layout import LiveTurns, live_turns
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.store.context_ring import ContextRing

Tokens = Sequence[int] | NDArray[np.integer[Any]]  #: token ids, shape (tokens,)
_FIRST_ROWS = 256
_MAX_TOKEN = 2**31 - 1
_SHORT_LIST = 64  #: maximum length of a list that is checked without conversion to an array


class LiveTable:
    """Live turns (begun, not ended) by handle, with their contexts.

    A handle names a row of ``turns`` from ``open`` to ``close``. Rows are reused, handles are not. Not thread-safe for
    writers. A reader that drafts while the table grows continues with the old rows.
    """

    def __init__(self, config: ForestConfig) -> None:
        self._config = config
        self._handles = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Remove all turns; their handles are not used again."""
        self.contexts = ContextRing(self._config.max_context_tokens, self._config.context_window)
        self.turns: LiveTurns = live_turns(_FIRST_ROWS)
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self._rows: dict[int, int] = {}

    def reserve(self, needed: int) -> None:
        """Make at least ``needed`` rows free, by doubling the table."""
        old = self.turns
        size = len(old.last)
        while size - len(old.last) + len(self._free) < needed:
            size *= 2
        if size == len(old.last):
            return
        new = live_turns(size)
        # Create a new table: readers may still draft from the old rows.
        new.records[: len(old.records)] = old.records
        self._free = list(range(size - 1, len(old.last) - 1, -1)) + self._free
        self.turns = new

    def open(self, states: Sequence[DialogueState]) -> tuple[list[int], NDArray[np.int64]]:
        """Start a turn at each state in reserved rows; return handles and rows."""
        # `_free` is a stack with the lowest rows on top, which keeps live turns close together in memory.
        remaining = len(self._free) - len(states)
        taken = self._free[remaining:][::-1]
        del self._free[remaining:]
        rows = np.array(taken, np.int64)
        backoff_lists = np.array([state.backoff_states() for state in states], np.uint64)
        kernels.begin(rows, backoff_lists.reshape(-1, 4), self.turns.records)
        handles = list(range(self._handles, self._handles + len(states)))
        self._handles += len(states)
        self._rows.update(zip(handles, taken, strict=True))
        return handles, rows

    def close(self, handles: Sequence[int]) -> None:
        for handle in handles:
            row = self._rows.pop(handle)
            self.turns.context[row] = 0
            self._free.append(row)

    def rows(self, handles: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of live handles, shape (handles,); raise ``UnknownTurn`` if a handle is not live."""
        try:
            return np.array([self._rows[handle] for handle in handles], np.int64)
        except KeyError as error:
            raise UnknownTurn(
                f"handle {error.args[0]!r} is not a live turn: pass a handle that begin() returned and "
                "end() has not finished"
            ) from None

    def rows_once(self, handles: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of live handles; raise ``ValueError`` if a handle repeats."""
        rows = self.rows(handles)
        if len(set(handles)) < len(rows):
            raise ValueError(f"expected each turn once, got {list(handles)!r:.100}")
        return rows


def token_ids(values: ArrayLike, what: str) -> NDArray[np.int32]:
    """Return ``values`` as token ids, shape (tokens,), or raise a ``ValueError`` that starts with ``what``."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1 and len(values):
        if values.min() >= 0:
            return values
    elif isinstance(values, list) and 0 < len(values) <= _SHORT_LIST and {*map(type, values)} == {int}:
        # For a short list, built-in min and max are faster than NumPy's.
        if min(values) >= 0 and max(values) <= _MAX_TOKEN:
            return np.array(values, np.int32)
    else:
        try:
            tokens = np.asarray(values)
        except ValueError as error:
            raise _no_tokens(what, values) from error
        if tokens.shape == (0,):
            return np.zeros(0, np.int32)
        if tokens.ndim == 1 and tokens.dtype.kind in "iu" and tokens.min() >= 0 and tokens.max() <= _MAX_TOKEN:
            return tokens.astype(np.int32)
    raise _no_tokens(what, values)


def known_tokens(tokens: NDArray[np.int32], vocabulary: int) -> NDArray[np.int32]:
    """Return ``tokens``, or raise ``ValueError`` if a token is not below ``vocabulary``; 0 accepts any token."""
    if vocabulary and len(tokens) and (tokens.max() >= vocabulary or tokens.min() < 0):
        outside = tokens.min() if tokens.min() < 0 else tokens.max()
        raise ValueError(
            f"expected tokens from 0 to {vocabulary - 1}, got {outside}: the turns are damaged or of another "
            "tokenizer; use a draft store of this policy, or an empty store"
        )
    return tokens


def _no_tokens(what: str, values: ArrayLike) -> ValueError:
    return ValueError(f"{what} must be token ids from 0 to {_MAX_TOKEN}, shape (tokens,), got {values!r:.100}")


def context_ids(
    states: Sequence[DialogueState], contexts: Sequence[Tokens] | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]] | None:
    if contexts is None:
        return None
    if len(contexts) != len(states):
        raise ValueError(f"contexts needs one entry per state: expected {len(states)}, got {len(contexts)}")
    return flat_ids(contexts, "contexts")


def new_ids(handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if len(tokens) != len(handles):
        raise ValueError(f"tokens needs one entry per row: expected {len(handles)}, got {len(tokens)}")
    return flat_ids(tokens, "tokens")


def flat_ids(rows: Sequence[Tokens], what: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the token ids of all rows, concatenated, and the start of each row, shape (rows + 1,)."""
    offsets = np.array([0, *accumulate(map(len, rows))], np.int64)
    if rows and all(isinstance(row, np.ndarray) and row.ndim == 1 for row in rows):
        return token_ids(np.concatenate(rows), what), offsets
    return token_ids([token for row in rows for token in row], what), offsets
