"""Exchange of finished turns between the stores of several processes.

Each process has its own forest; between steps it gives the turns sampled
there and takes those sampled elsewhere. Drafts are hints, so an sharing that is
late, partial or gone costs speed and never correctness: no step waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.state import DialogueState

logger = logging.getLogger(__name__)

MAX_PENDING_TOKENS = 1 << 24
"""Default of the most tokens that wait for an sharing: 64 MB."""
_PART = 1 << 15
"""Bytes of turns that are inserted at once: whoever uses the store meanwhile waits for no more."""


class SharingFailed(ForestError):
    """The other side cannot be reached; pending turns are given at the next call."""


class Swapped(NamedTuple):
    """The result of an sharing."""

    batches: Sequence[TurnBatch]
    """Turns of the others."""
    missed: int = 0
    """Turns of the others that were dropped before they were read."""


class TurnSharing(Protocol):
    """The connection to the other stores."""

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        """Give turns and take those of the others.

        Args:
            own: Turns that were not given before, unless the last call failed.
            first: Number of turns that were given before them.

        Raises:
            SharingFailed: If the others cannot be reached now.
        """


class TakesTurns(Protocol):
    """The part of a forest that an sharing needs."""

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None:
        """Add finished turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCounts:
    """Counts of the sharing so far."""

    sent: int = 0
    """Turns given."""
    received: int = 0
    """Turns of others inserted."""
    missed: int = 0
    """Turns of others that were dropped before this process read them."""
    dropped: int = 0
    """Own turns that waited too long and were dropped."""
    swaps: int = 0
    """Exchanges made."""
    failed: int = 0
    """Exchanges that failed."""


class SharedTurns:
    """A forest's membership in an sharing. Any thread may call ``note``; one calls ``swap``.

    Example:
        >>> class Alone:
        ...     def swap(self, own, first):
        ...         return Swapped([])
        >>> shared = SharedTurns(None, Alone())
        >>> shared.note(DialogueState(exact=1), (7, 8))
        >>> shared.swap().sent
        1
    """

    def __init__(
        self,
        forest: TakesTurns | None,
        sharing: TurnSharing,
        *,
        max_pending_tokens: int = MAX_PENDING_TOKENS,
        vocabulary: int = 0,
        tokenizer: str = "",
    ) -> None:
        """Join an sharing.

        Args:
            forest: Receives the others' turns; ``None`` gives and takes nothing in.
            max_pending_tokens: Most own tokens that wait for an sharing; the oldest turns go first.
            vocabulary: Tokens that the policy knows; turns of others with further ones count as missed. 0 is any.
            tokenizer: Hash of its tokenizer; turns of another one count as missed. Empty where it is not known.
        """
        self._vocabulary, self._tokenizer = vocabulary, tokenizer
        self._warned = False
        self._forest = forest
        self._sharing = sharing
        self._most = max_pending_tokens
        self._lock = threading.Lock()
        self._pending: deque[tuple[DialogueState, tuple[int, ...]]] = deque()
        self._tokens = 0
        self._first = 0
        self._given = self._taken = self._missed = self._dropped = self._swaps = self._lost = 0

    @property
    def counts(self) -> SwapCounts:
        """Counts of the sharing so far."""
        return SwapCounts(
            sent=self._given,
            received=self._taken,
            missed=self._missed,
            dropped=self._dropped,
            swaps=self._swaps,
            failed=self._lost,
        )

    def note(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Remember a finished turn of this process until the next sharing."""
        with self._lock:
            self._pending.append((state, tuple(tokens)))
            self._tokens += len(tokens)
            while self._tokens > self._most:
                self._tokens -= len(self._pending.popleft()[1])
                self._first += 1
                self._dropped += 1

    def swap(self) -> SwapCounts:
        """Give the noted turns, and insert those of the others. If the others are unreachable, own turns wait here."""
        with self._lock:
            noted, first = list(self._pending), self._first
        states, turns = [state for state, _ in noted], [tokens for _, tokens in noted]
        own = TurnBatch.of(states, turns, tokenizer=self._tokenizer)
        try:
            swapped = self._sharing.swap(own, first)
        except SharingFailed as error:
            self._lost += 1
            logger.warning("no turns were exchanged (%d wait): %s", len(noted), error)
            return self.counts
        self._swaps += 1
        self._forget(first + len(own))
        self._given += len(own)
        self._missed += swapped.missed
        if self._forest is not None:
            for batch in swapped.batches:
                known = self._ours(batch)
                self._missed += len(batch) - len(known)
                for part in known.parts(_PART):
                    self._forest.insert_all(part.states, part.turns)
                    self._taken += len(part)
        return self.counts

    def _ours(self, batch: TurnBatch) -> TurnBatch:
        """The turns of a batch that this policy could have sampled."""
        if not self._tokenizer or batch.tokenizer in ("", self._tokenizer):
            return batch.known(self._vocabulary)
        if not self._warned:
            self._warned = True
            logger.warning(
                "turns of another tokenizer are left out: expected %s, got %.100r; let engines of one model alone "
                "share their turns",
                self._tokenizer,
                batch.tokenizer,
            )
        return batch.select(np.zeros(len(batch), bool))

    def _forget(self, stop: int) -> None:
        """Drop the turns noted before turn ``stop``."""
        with self._lock:
            while self._pending and self._first < stop:
                self._tokens -= len(self._pending.popleft()[1])
                self._first += 1
