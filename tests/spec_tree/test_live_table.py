"""Rows for live turns: handles that are never given twice, and rows that are."""

import pytest

from turntree.spec_tree import DialogueState, ForestConfig, UnknownTurn
from turntree.spec_tree.layout import START
from turntree.spec_tree.live_table import LiveTable, said_ids, token_ids

STATE = DialogueState.from_tokens([1, 2])


def test_rows_are_used_again_and_handles_are_not() -> None:
    table = LiveTable(ForestConfig())
    table.reserve(1)
    first, row = table.open(STATE)
    table.close([first])
    second, again = table.open(STATE)
    assert (again, len(table)) == (row, 1)
    assert second != first
    with pytest.raises(UnknownTurn, match=f"handle {first} names no live turn"):
        table.rows([first])


def test_a_row_begins_as_if_nobody_had_used_it() -> None:
    table = LiveTable(ForestConfig())
    fresh, row = table.open(STATE)
    for column in table.turns:
        column[row] = 3
    table.turns.context[row] = 5, 9
    table.close([fresh])
    _, row = table.open(STATE)
    live = table.turns
    assert (live.last[row], live.tail[row, 0], live.length[row], live.turn[row]) == (0, START, 0, 0)
    assert live.context[row].tolist() == [0, 0]
    assert (live.anchor_count[row], live.place_count[row], live.node_count[row], live.drafted[row]) == (0, 0, 0, 0)
    assert live.keys[row].tolist() == list(STATE.ladder())


def test_a_table_grows_around_the_turns_in_it() -> None:
    table = LiveTable(ForestConfig())
    handles = []
    for _ in range(3):
        table.reserve(200)
        for _ in range(200):
            handle, row = table.open(STATE)
            table.turns.length[row] = handle
            handles.append(handle)
    rows = table.rows(handles)
    assert len(set(rows.tolist())) == 600
    assert table.turns.length[rows].tolist() == handles


def test_clearing_makes_all_handles_unknown_for_good() -> None:
    table = LiveTable(ForestConfig())
    old, _ = table.open(STATE)
    table.clear()
    new, _ = table.open(STATE)
    assert (len(table), new != old) == (1, True)
    with pytest.raises(UnknownTurn):
        table.rows([old])


def test_tokens_of_a_batch_are_laid_out_one_after_another() -> None:
    said, offsets = said_ids([4, 5, 6], [[1, 2], [], [2**31 - 1]])
    assert (said.tolist(), offsets.tolist()) == ([1, 2, 2**31 - 1], [0, 2, 2, 3])


@pytest.mark.parametrize("tokens", [[-1], [2**31], [[1], [2]], ["a"]])
def test_what_is_no_token_id_is_refused_by_name(tokens: list[object]) -> None:
    with pytest.raises(ValueError, match="asked must be token ids from 0 to 2147483647"):
        token_ids(tokens, "asked")  # type: ignore[arg-type]
