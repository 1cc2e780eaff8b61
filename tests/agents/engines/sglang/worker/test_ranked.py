from __future__ import annotations

from types import SimpleNamespace

import pytest

from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.drafter import TreeDrafter
from turntree.agents.engines.sglang.worker.ranked import RankedDrafts, RankedExchange
from turntree.spec_tree import DialogueState, DraftBatch, SpecForest
from turntree.spec_tree.exchange.exchange import ExchangeLost, SharedTurns, Swapped
from turntree.spec_tree.exchange.turn_batch import TurnBatch

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


@pytest.fixture(autouse=True)
def nothing_sent(monkeypatch):
    monkeypatch.setattr(Rank, "sent", [])


def swapped(*exchanges) -> list[int]:
    """Turns that each rank holds once it has met the others."""
    forests = [SpecForest() for _ in exchanges]
    for forest, exchange in zip(forests, exchanges, strict=True):
        SharedTurns(forest, exchange).swap()
    return [forest.finished([STATE])[0] for forest in forests]


def test_both_ranks_insert_what_the_first_one_took():
    others = Once((1, 2, 3), (1, 2, 4))
    assert swapped(*(RankedExchange(others, Rank(rank)) for rank in range(2))) == [2, 2]


def test_without_the_broadcast_the_second_rank_would_be_left_empty():
    others = Once((1, 2, 3))
    assert swapped(others, others) == [1, 0]


def test_a_lost_exchange_is_lost_on_every_rank():
    others = Once()
    others.turns = None
    for rank in range(2):
        with pytest.raises(ExchangeLost, match="away"):
            RankedExchange(others, Rank(rank)).swap(TurnBatch.of([], []), 0)


def drafts_of(turn: tuple[int, ...]) -> DraftBatch:
    forest = SpecForest()
    forest.insert(STATE, turn)
    return forest.draft(forest.begin([STATE]), max_nodes=4, room=[4])


def test_every_rank_verifies_what_the_first_one_drafts():
    own = [drafts_of(turn) for turn in ((5, 6, 7), (5, 8, 9))]
    assert own[0].tokens.tolist() != own[1].tokens.tolist()
    first, second = (RankedDrafts(Rank(rank))(drafts) for rank, drafts in enumerate(own))
    for name in DraftBatch.__slots__:
        assert getattr(second, name).tolist() == getattr(first, name).tolist() == getattr(own[0], name).tolist()


def test_a_drafter_verifies_what_is_agreed_on():
    other = drafts_of((11, 12))
    drafts = TreeDrafter(SglangSettings(), SpecForest(), 8, agree=lambda own: other)
    params = SimpleNamespace(custom_params=None, max_new_tokens=8, stop_token_ids=None)
    said = {"origin_input_ids": [1, 2], "output_ids": [3], "finished_reason": None}
    request = SimpleNamespace(rid="a", sampling_params=params, **said)
    assert drafts.propose([request]).tokens[0, :3].tolist() == [3, 11, 12]
