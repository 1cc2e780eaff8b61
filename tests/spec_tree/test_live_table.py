"""Rows for live turns, which are used again; what handles do is shown by the tests of the forest."""

from turntree.spec_tree import DialogueState, ForestConfig
from turntree.spec_tree.layout import START
from turntree.spec_tree.live_table import LiveTable

STATE = DialogueState.from_tokens([1, 2])


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
