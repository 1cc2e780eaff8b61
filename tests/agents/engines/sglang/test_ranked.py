from __future__ import annotations

import pytest

from turntree.agents.engines.sglang.ranked import RankedExchange
from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.exchange import ExchangeLost, SharedTurns, Swapped
from turntree.spec_tree.turn_batch import TurnBatch

STATE = DialogueState(exact=5, task="t")


class Rank:
    """One of two ranks; the second reads what the first has put down."""

    sent: list = []

    def __init__(self, rank: int) -> None:
        self.rank_in_group = rank

    def broadcast_object(self, obj=None, src=0):
        if self.rank_in_group == src:
            self.sent.append(obj)
            return obj
        return self.sent.pop(0)


class Once:
    """Others' turns, which may be had once."""

    def __init__(self, *turns: tuple[int, ...]) -> None:
        self.turns = turns

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        if self.turns is None:
            raise ExchangeLost("away")
        had, self.turns = self.turns, None
        return Swapped([TurnBatch.of([STATE] * len(had), had)], 1)


def test_both_ranks_insert_what_the_first_one_took():
    Rank.sent = []
    others = Once((1, 2, 3), (1, 2, 4))
    forests = [SpecForest(), SpecForest()]
    for rank, forest in enumerate(forests):
        SharedTurns(forest, RankedExchange(others, Rank(rank))).swap()
    assert [forest.finished([STATE]) for forest in forests] == [[2], [2]]


def test_without_the_broadcast_the_second_rank_would_be_left_empty():
    others = Once((1, 2, 3))
    forests = [SpecForest(), SpecForest()]
    for forest in forests:
        SharedTurns(forest, others).swap()
    assert [forest.finished([STATE]) for forest in forests] == [[1], [0]]


def test_a_lost_exchange_is_lost_on_every_rank():
    Rank.sent = []
    others = Once()
    others.turns = None
    for rank in range(2):
        with pytest.raises(ExchangeLost, match="away"):
            RankedExchange(others, Rank(rank)).swap(TurnBatch.of([], []), 0)
