import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.spec_tree import DialogueState, SpecForest
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_log import Cursor, News, TurnLog
from turntree.spec_tree.sharing.turn_sharing import SharedTurns, SharingFailed, SwapCounts, Swapped


def batch(*numbers: int, task: str = "") -> TurnBatch:
    return TurnBatch.of([DialogueState(exact=number + 1, task=task) for number in numbers], [[n] * 4 for n in numbers])


def said(news: News | Swapped) -> list[int]:
    return [int(turn[0]) for one in news.batches for turn in one.turns]


@pytest.fixture
def log() -> TurnLog:
    return TurnLog(1 << 20)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=30))
def test_everybody_reads_each_turn_of_the_others_once_and_none_of_its_own(calls: list[tuple[str, bool, int]]) -> None:
    log = TurnLog(1 << 20)
    given: dict[str, list[int]] = {name: [] for name in "abc"}
    got: dict[str, list[int]] = {name: [] for name in "abc"}
    cursors: dict[str, Cursor | None] = dict.fromkeys("abc")
    number = 0
    for name, reads, count in [*calls, *((name, True, 0) for name in "abc")]:
        log.append(name, len(given[name]), batch(*range(number, number + count)))
        given[name] += range(number, number + count)
        number += count
        if reads:
            news = log.read(name, cursors[name])
            got[name] += said(news)
            cursors[name] = news.cursor
            assert news.missed == 0
    for name in "abc":
        assert got[name] == sorted(number for other in "abc" if other != name for number in given[other])


def test_the_log_is_bounded_and_a_late_reader_is_told_what_it_missed() -> None:
    size = batch(0, 1).nbytes
    log = TurnLog(3 * size)
    cursor = log.read("b", None).cursor
    for number in range(0, 20, 2):
        log.append("a", number, batch(number, number + 1))
        assert log.nbytes <= 3 * size
    news = log.read("b", cursor)
    assert said(news) == [14, 15, 16, 17, 18, 19]
    assert (news.missed, log.dropped, log.held) == (14, 14, 6)
    assert log.read("c", None).missed == 0  # a newcomer misses nothing that it was promised


def test_a_batch_larger_than_the_log_is_let_go_and_a_log_that_was_begun_anew_is_read_from_its_start() -> None:
    with pytest.raises(ValueError, match="max_bytes must be positive"):
        TurnLog(0)
    log = TurnLog(10)
    log.append("a", 0, batch(0))
    assert (log.held, log.nbytes, log.dropped) == (0, 0, 1)
    assert said(log.read("b", None)) == []
    first, second = TurnLog(1 << 20), TurnLog(1 << 20)
    first.append("a", 0, batch(*range(9)))
    cursor = first.read("b", None).cursor
    second.append("a", 9, batch(9))
    assert said(second.read("b", cursor)) == [9]


def test_the_newest_turns_come_first_where_there_are_too_many(log: TurnLog) -> None:
    log.append("a", 0, batch(0, 1, 2))
    log.append("a", 3, batch(3, 4))
    news = log.read("b", None, max_tokens=13)
    assert said(news) == [2, 3, 4]
    assert news.missed == 2
    assert said(log.read("b", news.cursor)) == []


def test_only_what_is_wanted_travels(log: TurnLog) -> None:
    log.append("a", 0, batch(0, 1, task="mine"))
    log.append("a", 2, batch(2, task="other"))
    news = log.read("b", None, wanted=lambda one: np.array([state.task == "mine" for state in one.states]))
    assert said(news) == [0, 1]
    assert news.missed == 0


HERE = DialogueState.from_tokens([1, 2, 3], task="7", env="sums")


class Wire:
    """A connection to a log in this process that may fail before or after it reached the log."""

    def __init__(self, log: TurnLog, name: str) -> None:
        self.log, self.name = log, name
        self.cursor: Cursor | None = None
        self.cut = ""

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        if self.cut == "before":
            raise SharingFailed("cut")
        self.log.append(self.name, first, own)
        if self.cut == "after":
            raise SharingFailed("cut")
        news = self.log.read(self.name, self.cursor)
        self.cursor = news.cursor
        return Swapped(news.batches, news.missed)


def member(log: TurnLog, name: str, **bounds: int) -> tuple[SpecForest, Wire, SharedTurns]:
    forest, wire = SpecForest(), Wire(log, name)
    return forest, wire, SharedTurns(forest, wire, **bounds)


def test_what_one_store_was_told_is_drafted_by_another(log: TurnLog) -> None:
    _, _, one = member(log, "a")
    forest, _, other = member(log, "b")
    one.note(HERE, (7, 8, 9))
    one.swap()
    turn = forest.begin([HERE])
    assert forest.draft(turn, max_nodes=3, max_depths=[8]).tokens.tolist() == []
    assert other.swap().received == 1
    assert forest.draft(turn, max_nodes=3, max_depths=[8]).tokens.tolist() == [7, 8, 9]


def test_turns_of_others_beyond_the_vocabulary_are_left_out_and_counted(log: TurnLog) -> None:
    log.append("b", 0, TurnBatch.of([HERE] * 4, [[1, 9], [], [2, 2**31 - 1], [10]]))
    forest, wire, _ = member(log, "a")
    counts = SharedTurns(forest, wire, vocabulary=10).swap()
    assert (counts.received, counts.missed, forest.finished([HERE])) == (2, 2, [1])


def test_turns_of_another_tokenizer_are_left_out_and_said_once(log: TurnLog, caplog: pytest.LogCaptureFixture) -> None:
    for number, hashed in enumerate(("x", "y", "x", "")):
        log.append("b", number, TurnBatch.of([HERE], [[number]], tokenizer=hashed))
    forest, wire, _ = member(log, "a")
    shared = SharedTurns(forest, wire, tokenizer="y")
    shared.note(HERE, [7])
    counts = shared.swap()
    assert (counts.received, counts.missed, forest.finished([HERE])) == (2, 2, [2])
    assert [r.getMessage() for r in caplog.records] == [
        "turns of another tokenizer are left out: expected y, got 'x'; share turns only between engines of the same "
        "model"
    ]
    assert [batch.tokenizer for batch in log.read("b", None).batches] == ["y"]


def test_turns_wait_while_the_others_are_away_and_arrive_once(log: TurnLog) -> None:
    _, wire, shared = member(log, "a")
    forest, _, other = member(log, "b")
    for number, cut in enumerate(["before", "after", "before", ""]):
        wire.cut = cut
        shared.note(HERE, (number, 5))
        shared.swap()
    other.swap()
    assert forest.stats().rollouts == 4
    assert shared.counts == SwapCounts(sent=4, swaps=1, failed=3)


def test_what_waits_is_bounded_and_the_oldest_goes_first(log: TurnLog) -> None:
    _, wire, shared = member(log, "a", max_pending_tokens=6)
    wire.cut = "before"
    for number in range(5):
        shared.note(HERE, (number, number))
    shared.swap()
    wire.cut = ""
    counts = shared.swap()
    assert (counts.sent, counts.dropped) == (3, 2)
    assert [turn.tolist() for batch in log.read("b", None).batches for turn in batch.turns] == [[2, 2], [3, 3], [4, 4]]


def test_threads_may_note_at_once(log: TurnLog) -> None:
    _, _, shared = member(log, "a")

    def work() -> None:
        for number in range(500):
            shared.note(HERE, (number,))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        shared.swap()
    assert shared.swap().sent == 2000 == log.held


def test_a_turn_that_is_noted_during_an_exchange_goes_with_the_next(log: TurnLog) -> None:
    _, wire, shared = member(log, "a")
    plain = wire.swap

    def noting(own: TurnBatch, first: int) -> Swapped:
        shared.note(HERE, (9,))
        return plain(own, first)

    wire.swap = noting  # type: ignore[method-assign]
    shared.note(HERE, (8,))
    shared.swap()
    wire.swap = plain  # type: ignore[method-assign]
    assert shared.swap().sent == 2
    assert said(log.read("b", None)) == [8, 9]
