"""Draft sharing between the draft stores of several processes.

Each process has its own forest. Between steps, each process sends the turns that it sampled and receives the
turns of the other processes. Drafts never change which tokens are sampled. So if sharing is late, incomplete
or broken, rollouts get slower but stay correct, and no step waits for sharing.
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

MAX_PENDING_TOKENS = 1 << 24  #: default maximum of tokens that wait to be sent, 64 MB
_PART = 1 << 15  #: bytes of turns inserted at once, so that other users of the forest wait only briefly


class SharingFailed(ForestError):
    """The other stores cannot be reached; pending turns are sent in the next call."""


class Swapped(NamedTuple):
    """The result of sending and receiving turns."""

    batches: Sequence[TurnBatch]  #: turns of the other stores
    missed: int = 0  #: turns of other stores that were dropped before they were read


class TurnSharing(Protocol):
    """The connection to the other draft stores."""

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        """Send ``own`` turns and receive the other stores' turns; ``first`` turns were sent earlier.

        Each turn is sent once, except that turns of a call that raised ``SharingFailed`` are sent again.
        """


class TakesTurns(Protocol):
    """The part of a forest that sharing needs."""

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None:
        """Add finished turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCounts:
    """Counters of draft sharing."""

    sent: int = 0  #: turns sent
    received: int = 0  #: received turns that were inserted
    missed: int = 0  #: turns of other stores that were dropped before this process read them
    dropped: int = 0  #: own turns that waited too long and were dropped
    swaps: int = 0  #: successful calls
    failed: int = 0  #: failed calls


class SharedTurns:
    """A forest that shares its turns. Any thread may call ``note``, but only one ``swap``.

    Without a ``forest``, received turns are not inserted. At most ``max_pending_tokens`` own tokens wait to be sent;
    the oldest turns are dropped first. Received turns with tokens beyond ``vocabulary`` (0: any) or of another
    ``tokenizer`` (a hash, empty: unknown) count as missed.

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
        self._vocabulary, self._tokenizer = vocabulary, tokenizer
        self._warned = False
        self._forest = forest
        self._sharing = sharing
        self._max_pending_tokens = max_pending_tokens
        self._lock = threading.Lock()
        self._pending: deque[tuple[DialogueState, tuple[int, ...]]] = deque()
        self._tokens = 0
        self._first = 0  # turns queued before the first pending turn
        self._sent = self._received = self._missed = self._dropped = self._swaps = self._failed = 0

    @property
    def counts(self) -> SwapCounts:
        """Counters since creation."""
        return SwapCounts(
            sent=self._sent,
            received=self._received,
            missed=self._missed,
            dropped=self._dropped,
            swaps=self._swaps,
            failed=self._failed,
        )

    def note(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Queue a finished turn of this process for the next ``swap``."""
        with self._lock:
            self._pending.append((state, tuple(tokens)))
            self._tokens += len(tokens)
            while self._tokens > self._max_pending_tokens:
                self._tokens -= len(self._pending.popleft()[1])
                self._first += 1
                self._dropped += 1

    def swap(self) -> SwapCounts:
        """Send the queued turns and insert the received turns; if sending fails, the queue is kept."""
        with self._lock:
            # A copy, since sending may take seconds and `note` must not wait.
            pending, first = list(self._pending), self._first
        states, turns = [state for state, _ in pending], [tokens for _, tokens in pending]
        own = TurnBatch.of(states, turns, tokenizer=self._tokenizer)
        try:
            swapped = self._sharing.swap(own, first)
        except SharingFailed as error:
            self._failed += 1
            logger.warning("draft sharing failed, %d turns wait for the next call: %s", len(pending), error)
            return self.counts
        self._swaps += 1
        self._forget(first + len(own))
        self._sent += len(own)
        self._missed += swapped.missed
        if self._forest is not None:
            for batch in swapped.batches:
                known = self._usable(batch)
                self._missed += len(batch) - len(known)
                for part in known.parts(_PART):
                    self._forest.insert_all(part.states, part.turns)
                    self._received += len(part)
        return self.counts

    def _usable(self, batch: TurnBatch) -> TurnBatch:
        if not self._tokenizer or batch.tokenizer in ("", self._tokenizer):
            return batch.known(self._vocabulary)
        if not self._warned:
            self._warned = True
            logger.warning(
                "turns of another tokenizer are left out: expected %s, got %.100r; share turns only between engines "
                "of the same model",
                self._tokenizer,
                batch.tokenizer,
            )
        return batch.select(np.zeros(len(batch), bool))

    def _forget(self, stop: int) -> None:
        # While turns were sent, `note` may have dropped some of them, so compare turn numbers, not lengths.
        with self._lock:
            while self._pending and self._first < stop:
                self._tokens -= len(self._pending.popleft()[1])
                self._first += 1
