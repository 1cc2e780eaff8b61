from __future__ import annotations

import threading

from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.exchange import ExchangeLost, SharedTurns, SwapCounts, Swapped
from turntree.spec_tree.turn_batch import TurnBatch
from turntree.spec_tree.turn_log import Cursor, TurnLog

HERE = DialogueState.from_tokens([1, 2, 3], task="7", env="sums")


class Wire:
    """An exchange over a log of this process, which may be cut before or after the log was reached."""

    def __init__(self, log: TurnLog, name: str) -> None:
        self.log, self.name = log, name
        self.cursor: Cursor | None = None
        self.cut = ""

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        if self.cut == "before":
            raise ExchangeLost("cut")
        self.log.append(self.name, first, own)
        if self.cut == "after":
            raise ExchangeLost("cut")
        news = self.log.read(self.name, self.cursor)
        self.cursor = news.cursor
        return Swapped(news.batches, news.missed)


def member(log: TurnLog, name: str, **bounds: int) -> tuple[SpecForest, Wire, SharedTurns]:
    forest, wire = SpecForest(), Wire(log, name)
    return forest, wire, SharedTurns(forest, wire, **bounds)


def test_what_one_store_was_told_is_drafted_by_another() -> None:
    log = TurnLog(1 << 20)
    _, _, one = member(log, "a")
    forest, _, other = member(log, "b")
    one.note(HERE, (7, 8, 9))
    one.swap()
    turn = forest.begin([HERE])
    assert forest.draft(turn, max_nodes=3, room=[8]).tokens.tolist() == []
    assert other.swap().taken == 1
    assert forest.draft(turn, max_nodes=3, room=[8]).tokens.tolist() == [7, 8, 9]


def test_a_store_is_not_given_its_own_turns_again() -> None:
    forest, _, shared = member(TurnLog(1 << 20), "a")
    forest.insert(HERE, [7, 8, 9])
    shared.note(HERE, (7, 8, 9))
    for _ in range(3):
        shared.swap()
    assert forest.stats().rollouts == 1
    assert shared.counts == SwapCounts(given=1, swaps=3)


def test_turns_wait_while_the_others_are_away_and_arrive_once() -> None:
    log = TurnLog(1 << 20)
    _, wire, shared = member(log, "a")
    forest, _, other = member(log, "b")
    for number, cut in enumerate(["before", "after", "before", ""]):
        wire.cut = cut
        shared.note(HERE, (number, 5))
        shared.swap()
    other.swap()
    assert forest.stats().rollouts == 4
    assert shared.counts == SwapCounts(given=4, swaps=1, lost=3)


def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    log = TurnLog(1 << 20)
    _, wire, shared = member(log, "a", max_pending_tokens=6)
    wire.cut = "before"
    for number in range(5):
        shared.note(HERE, (number, number))
    shared.swap()
    wire.cut = ""
    counts = shared.swap()
    assert (counts.given, counts.dropped) == (3, 2)
    assert [turn.tolist() for batch in log.read("b", None).batches for turn in batch.turns] == [[2, 2], [3, 3], [4, 4]]


def test_turns_that_are_noted_during_an_exchange_go_with_the_next() -> None:
    log = TurnLog(1 << 20)
    _, wire, shared = member(log, "a")
    plain = wire.swap

    def busy(own: TurnBatch, first: int) -> Swapped:
        shared.note(HERE, (9,))
        return plain(own, first)

    wire.swap = busy  # type: ignore[method-assign]
    shared.note(HERE, (8,))
    assert shared.swap().given == 1
    wire.swap = plain  # type: ignore[method-assign]
    assert shared.swap().given == 2


def test_threads_may_note_at_once() -> None:
    log = TurnLog(1 << 24)
    _, _, shared = member(log, "a")

    def work() -> None:
        for number in range(500):
            shared.note(HERE, (number,))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shared.swap()
    assert shared.swap().given == 2000 == log.held
