from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turntree.spec_tree.state import DialogueState


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnBatch:
    """Finished turns and their dialogue states as flat arrays, oldest first, to send between processes.

    Texts that many states share (task, tool history, environment) are stored once.
    """

    texts: tuple[str, ...]  #: distinct texts of the states
    exact: NDArray[np.uint64]  #: ``DialogueState.exact`` of each turn, shape (turns,)
    names: NDArray[np.int32]  #: indices of task, tools and environment in ``texts``, shape (turns, 3)
    lengths: NDArray[np.int32]  #: number of tokens of each turn, shape (turns,)
    tokens: NDArray[np.int32] | NDArray[np.uint16]  #: token ids, one turn after another; uint16 if all fit
    tokenizer: str = ""  #: hash of the tokenizer; empty if unknown

    @classmethod
    def of(cls, states: Sequence[DialogueState], turns: Sequence[ArrayLike], *, tokenizer: str = "") -> Self:
        """Build a batch from states, shape (turns,), and token ids, shape (tokens,) each."""
        if len(states) != len(turns):
            raise ValueError(f"turns needs one entry per state: expected {len(states)}, got {len(turns)}")
        index: dict[str, int] = {}
        names = [
            [index.setdefault(text, len(index)) for text in (state.task, state.tools, state.env)] for state in states
        ]
        arrays = [np.asarray(turn, np.int32) for turn in turns]
        flat = np.concatenate([np.zeros(0, np.int32), *arrays])
        return cls(
            texts=tuple(index),
            exact=np.array([state.exact for state in states], np.uint64),
            names=np.array(names, np.int32).reshape(-1, 3),
            lengths=np.array([len(turn) for turn in arrays], np.int32),
            tokens=flat.astype(np.uint16) if flat.max(initial=0) < 1 << 16 else flat,
            tokenizer=tokenizer,
        )

    def __len__(self) -> int:
        return len(self.exact)

    @cached_property
    def nbytes(self) -> int:
        """Approximate memory of the arrays and texts, bytes."""
        arrays = sum(array.nbytes for array in (self.exact, self.names, self.lengths, self.tokens))
        return arrays + sum(len(text) + 56 for text in self.texts)  # 56: bytes of an empty Python string

    @property
    def states(self) -> list[DialogueState]:
        texts = self.texts
        return [
            DialogueState(exact=exact, task=texts[task], tools=texts[tools], env=texts[env])
            for exact, (task, tools, env) in zip(self.exact.tolist(), self.names.tolist(), strict=True)
        ]

    @property
    def turns(self) -> list[NDArray[np.int32]]:
        return np.split(self.tokens.astype(np.int32), np.cumsum(self.lengths)[:-1]) if len(self) else []

    def select(self, kept: NDArray[np.bool_]) -> TurnBatch:
        """Return a batch of the turns where ``kept``, shape (turns,), is true."""
        if kept.all():
            return self
        names = self.names[kept]
        used, indices = np.unique(names, return_inverse=True)
        return TurnBatch(
            texts=tuple(self.texts[index] for index in used.tolist()),
            exact=self.exact[kept],
            names=indices.astype(np.int32).reshape(-1, 3),
            lengths=self.lengths[kept],
            tokens=self.tokens[np.repeat(kept, self.lengths)],
            tokenizer=self.tokenizer,
        )

    def copied(self) -> TurnBatch:
        """Return a copy of a batch whose arrays lie in borrowed memory."""
        return replace(self, **{name: getattr(self, name).copy() for name in _ARRAYS})

    def newest(self, tokens: int) -> TurnBatch:
        """Return the last turns that have at most ``tokens`` tokens together."""
        from_end = np.cumsum(self.lengths[::-1], dtype=np.int64)[::-1]
        return self.select(from_end <= tokens)

    def distinct(self) -> tuple[list[DialogueState], NDArray[np.int64]]:
        """Return one state for each task, and its index for each turn, shape (turns,).

        Turns without a task are distinguished by their exact states.
        """
        task, env = self.names[:, 0], self.names[:, 2]
        unnamed = np.array([not text for text in self.texts], bool)[task]
        rows = np.stack([task.astype(np.uint64), env.astype(np.uint64), np.where(unnamed, self.exact, 0)], axis=1)
        _, first, indices = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        states = [
            DialogueState(exact=exact, task=self.texts[task], env=self.texts[env])
            for exact, (task, _, env) in zip(self.exact[first].tolist(), self.names[first].tolist(), strict=True)
        ]
        return states, indices.reshape(-1)  # NumPy 2.0 returns the inverse with another shape

    def known(self, vocabulary: int) -> TurnBatch:
        """Return the turns whose tokens are all below ``vocabulary``; 0 accepts any token."""
        beyond = (self.tokens < 0) | (self.tokens > (vocabulary or 1 << 31) - 1)
        turn_of = np.repeat(np.arange(len(self)), self.lengths)
        return self.select(~np.isin(np.arange(len(self)), turn_of[beyond]))

    def parts(self, most: int) -> Iterator[TurnBatch]:
        """Yield the batch in parts of at most ``most`` bytes, or of one turn, in order."""
        if self.nbytes <= most or len(self) <= 1:
            yield self
            return
        first = np.arange(len(self)) < len(self) // 2
        yield from self.select(first).parts(most)
        yield from self.select(~first).parts(most)


_ARRAYS = ("exact", "names", "lengths", "tokens")
