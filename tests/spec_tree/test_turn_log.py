from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turntree.spec_tree import DialogueState
from turntree.spec_tree.turn_batch import TurnBatch
from turntree.spec_tree.turn_log import Cursor, News, TurnLog


def batch(*numbers: int, task: str = "") -> TurnBatch:
    return TurnBatch.of([DialogueState(exact=number + 1, task=task) for number in numbers], [[n] * 4 for n in numbers])


def said(news: News) -> list[int]:
    return [int(turn[0]) for one in news.batches for turn in one.turns]


@settings(deadline=None)
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


def test_turns_that_are_sent_twice_are_kept_once() -> None:
    log = TurnLog(1 << 20)
    assert log.append("a", 0, batch(0, 1)) == 2
    assert log.append("a", 0, batch(0, 1, 2)) == 1  # the answer was lost, and one turn was added
    assert log.append("a", 1, batch(1, 2)) == 0
    assert said(log.read("b", None)) == [0, 1, 2]


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


def test_a_batch_larger_than_the_log_is_let_go() -> None:
    log = TurnLog(10)
    log.append("a", 0, batch(0))
    assert (log.held, log.nbytes, log.dropped) == (0, 0, 1)
    assert said(log.read("b", None)) == []


def test_a_log_that_was_begun_anew_is_read_from_its_start() -> None:
    first, second = TurnLog(1 << 20), TurnLog(1 << 20)
    first.append("a", 0, batch(*range(9)))
    cursor = first.read("b", None).cursor
    second.append("a", 9, batch(9))
    assert said(second.read("b", cursor)) == [9]


def test_a_process_in_its_next_life_reads_what_it_said_before() -> None:
    log = TurnLog(1 << 20)
    log.append("a/1", 0, batch(0, 1))
    assert said(log.read("a/2", None)) == [0, 1]


def test_the_newest_turns_come_first_where_there_are_too_many() -> None:
    log = TurnLog(1 << 20)
    log.append("a", 0, batch(0, 1, 2))
    log.append("a", 3, batch(3, 4))
    news = log.read("b", None, max_tokens=13)
    assert said(news) == [2, 3, 4]
    assert news.missed == 2
    assert said(log.read("b", news.cursor)) == []


def test_only_what_is_wanted_travels() -> None:
    log = TurnLog(1 << 20)
    log.append("a", 0, batch(0, 1, task="mine"))
    log.append("a", 2, batch(2, task="other"))
    news = log.read("b", None, wanted=lambda one: np.array([state.task == "mine" for state in one.states]))
    assert said(news) == [0, 1]
    assert news.missed == 0


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes must be positive"):
        TurnLog(0)
