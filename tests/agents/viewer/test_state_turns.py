from __future__ import annotations

from turntree.agents.viewer.source import Source
from turntree.agents.viewer.state_turns import state_turns


def test_the_turns_of_the_most_frequent_state_are_found(source: Source) -> None:
    first = state_turns(source.records(), task=None, turn=0)
    assert (first.task, len(first.turns), first.all_turns) == ("adder/4", 40, 40)
    # Two of four kinds called the tool before the second turn, the others had ended.
    second = state_turns(source.records(), task="adder/4", turn=1)
    assert len(second.turns) == 20
