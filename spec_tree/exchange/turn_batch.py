"""Finished turns as flat arrays, to be sent between the stores of several processes.

Texts that many states share (task, tool history, environment) are stored once.
Bytes are validated on reading: anything incomplete is rejected.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.state import DialogueState


class DamagedBatch(ForestError, ValueError):
    """Bytes that are not a batch of turns, or incomplete."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnBatch:
    """Turns and the states where they were sampled, oldest first."""

    texts: tuple[str, ...]
    """Texts of the states, each once."""
    exact: NDArray[np.uint64]
    """``DialogueState.exact`` of each turn, shape (turns,)."""
    names: NDArray[np.int32]
    """Indices of task, tools and environment in ``texts``, shape (turns, 3)."""
    lengths: NDArray[np.int32]
    """Tokens of each turn, shape (turns,)."""
    tokens: NDArray[np.int32] | NDArray[np.uint16]
    """Token ids, one turn after another; the narrower dtype if all token ids fit."""

    @classmethod
    def of(cls, states: Sequence[DialogueState], turns: Sequence[ArrayLike]) -> Self:
        """Build a batch from turns.

        Args:
            states: States where they were sampled, shape (turns,).
            turns: Token ids, shape (tokens,) each.

        Raises:
            ValueError: If there is not one turn a state.
        """
        if len(states) != len(turns):
            raise ValueError(f"turns needs one entry a state: expected {len(states)}, got {len(turns)}")
        places: dict[str, int] = {}
        names = [
            [places.setdefault(text, len(places)) for text in (state.task, state.tools, state.env)] for state in states
        ]
        arrays = [np.asarray(turn, np.int32) for turn in turns]
        said = np.concatenate([np.zeros(0, np.int32), *arrays])
        return cls(
            texts=tuple(places),
            exact=np.array([state.exact for state in states], np.uint64),
            names=np.array(names, np.int32).reshape(-1, 3),
            lengths=np.array([len(turn) for turn in arrays], np.int32),
            tokens=said.astype(np.uint16) if said.max(initial=0) < 1 << 16 else said,
        )

    def __len__(self) -> int:
        return len(self.exact)

    @cached_property
    def nbytes(self) -> int:
        """Approximate memory in bytes: the arrays and the texts."""
        arrays = sum(array.nbytes for array in (self.exact, self.names, self.lengths, self.tokens))
        return arrays + sum(len(text) + 56 for text in self.texts)

    @property
    def states(self) -> list[DialogueState]:
        """The states where the turns were sampled."""
        texts = self.texts
        return [
            DialogueState(exact=exact, task=texts[task], tools=texts[tools], env=texts[env])
            for exact, (task, tools, env) in zip(self.exact.tolist(), self.names.tolist(), strict=True)
        ]

    @property
    def turns(self) -> list[NDArray[np.int32]]:
        """The turns' token ids, shape (tokens,) each."""
        return np.split(self.tokens.astype(np.int32), np.cumsum(self.lengths)[:-1]) if len(self) else []

    def select(self, kept: NDArray[np.bool_]) -> TurnBatch:
        """The turns where ``kept``, shape (turns,), is true."""
        if kept.all():
            return self
        names = self.names[kept]
        used, places = np.unique(names, return_inverse=True)
        return TurnBatch(
            texts=tuple(self.texts[place] for place in used.tolist()),
            exact=self.exact[kept],
            names=places.astype(np.int32).reshape(-1, 3),
            lengths=self.lengths[kept],
            tokens=self.tokens[np.repeat(kept, self.lengths)],
        )

    def copied(self) -> TurnBatch:
        """A copy in its own memory, for arrays that lie in borrowed memory."""
        return TurnBatch(texts=self.texts, **{name: getattr(self, name).copy() for name in _ARRAYS})

    def newest(self, tokens: int) -> TurnBatch:
        """The last turns, as many as have at most ``tokens`` tokens."""
        from_end = np.cumsum(self.lengths[::-1], dtype=np.int64)[::-1]
        return self.select(from_end <= tokens)

    def distinct(self) -> tuple[list[DialogueState], NDArray[np.int64]]:
        """The tasks of the turns: one state for each, and its index for each turn, shape (turns,).

        Turns without a task are distinguished by their exact states.
        """
        task, env = self.names[:, 0], self.names[:, 2]
        unnamed = np.array([not text for text in self.texts], bool)[task]
        rows = np.stack([task.astype(np.uint64), env.astype(np.uint64), np.where(unnamed, self.exact, 0)], axis=1)
        _, first, places = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        states = [
            DialogueState(exact=exact, task=self.texts[task], env=self.texts[env])
            for exact, (task, _, env) in zip(self.exact[first].tolist(), self.names[first].tolist(), strict=True)
        ]
        return states, places.reshape(-1)

    def to_bytes(self) -> bytes:
        """The batch as an uncompressed ``.npz`` without pickles, the texts compressed, under a zlib digest."""
        file = io.BytesIO()
        texts = zlib.compress(json.dumps(self.texts).encode(), 1)
        np.savez(
            file,
            texts=np.frombuffer(texts, np.uint8),
            **{name: getattr(self, name) for name in _ARRAYS},
        )
        data = file.getvalue()
        return _MAGIC + zlib.crc32(data).to_bytes(4, "little") + data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what ``to_bytes`` wrote.

        Raises:
            DamagedBatch: If it is something else, or incomplete.
        """
        start = len(_MAGIC) + 4
        body = data[start:]
        if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(4, "little") != data[len(_MAGIC) : start]:
            raise DamagedBatch(f"expected a batch of turns, got {len(data)} bytes that are not one or are incomplete")
        try:
            with np.load(io.BytesIO(body)) as file:
                arrays: dict[str, Any] = {name: file[name] for name in _ARRAYS}
                texts = json.loads(zlib.decompress(file["texts"].tobytes()))
            batch = cls(texts=tuple(texts), **arrays)
        except (KeyError, ValueError, OSError, zlib.error) as error:
            raise DamagedBatch(f"a batch of turns cannot be read: {error}") from error
        batch._check()
        return batch

    def _check(self) -> None:
        turns = len(self.exact)
        rules = {
            "texts": all(isinstance(text, str) for text in self.texts),
            "exact": self.exact.dtype == np.uint64 and self.exact.ndim == 1,
            "names": self.names.dtype == np.int32
            and self.names.shape == (turns, 3)
            and int(self.names.min(initial=0)) >= 0
            and (turns == 0 or int(self.names.max(initial=0)) < len(self.texts)),
            "lengths": self.lengths.dtype == np.int32
            and self.lengths.shape == (turns,)
            and int(self.lengths.min(initial=0)) >= 0,
            "tokens": self.tokens.dtype in (np.int32, np.uint16)
            and self.tokens.shape == (int(self.lengths.sum(dtype=np.int64)),)
            and int(self.tokens.min(initial=0)) >= 0,
        }
        for name, holds in rules.items():
            if not holds:
                raise DamagedBatch(f"{name} of a batch of turns does not match its other parts")


_ARRAYS = ("exact", "names", "lengths", "tokens")
_MAGIC = b"turntree turns 1\n"
