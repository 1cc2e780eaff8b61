"""Agreement of tensor-parallel ranks: the same drafts verified, the same turns inserted in the same order.

Every rank has recorded the same turns of its own. The first rank exchanges them
for the others', and broadcasts the result, a failure included. Its drafts are
broadcast too: the ranks compute the same ones up to the rounding of kernels that
each compiled for itself, and near a threshold they may differ.
"""

from __future__ import annotations

from typing import Any, Protocol

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.exchange.exchange import Exchange, ExchangeLost, Swapped
from turntree.spec_tree.exchange.turn_batch import TurnBatch


class Ranks(Protocol):
    """A group of ranks that reach this point together."""

    rank_in_group: int

    def broadcast_object(self, obj: Any | None = None, src: int = 0) -> Any:
        """The object of rank ``src``, on every rank."""
        ...


class RankedDrafts:
    """The first rank's drafts, on every rank."""

    def __init__(self, ranks: Ranks) -> None:
        """Use a group of ranks, all of which draft together."""
        self._ranks = ranks

    def __call__(self, drafts: DraftBatch) -> DraftBatch:
        """The drafts that all ranks verify."""
        agreed: DraftBatch = self._ranks.broadcast_object(None if self._ranks.rank_in_group else drafts)
        return agreed


class RankedExchange:
    """The first rank's exchange, with the same result on all ranks."""

    def __init__(self, exchange: Exchange, ranks: Ranks) -> None:
        """Wrap an exchange.

        Args:
            exchange: Used on the first rank only.
            ranks: All of them call ``swap`` together.
        """
        self._exchange = exchange
        self._ranks = ranks

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        """As ``Exchange.swap``."""
        if self._ranks.rank_in_group:
            return _understood(self._ranks.broadcast_object())
        try:
            swapped = self._exchange.swap(own, first)
            message: Any = ([batch.to_bytes() for batch in swapped.batches], swapped.missed)
        except ExchangeLost as error:
            message = str(error)
        return _understood(self._ranks.broadcast_object(message))


def _understood(message: Any) -> Swapped:
    if isinstance(message, str):
        raise ExchangeLost(message)
    batches, missed = message
    return Swapped([TurnBatch.from_bytes(data) for data in batches], missed)
