"""Compiles the kernels before the first turn, or loads them: no step of an engine is to wait for that."""

from __future__ import annotations

from turntree.spec_tree.budget import DraftBudget
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.forest import SpecForest
from turntree.spec_tree.state import DialogueState

_LONG = 1 << 16
"""Tokens of a turn of which three are more than the log has room for at first."""


def warm_up() -> None:
    """Go once through what live turns need: begin, draft, commit and end them, let the oldest go, let the log grow."""
    forest, state = SpecForest(ForestConfig(rollouts_per_state=1)), DialogueState(exact=1)
    for said in ([1, 2, 3], [1, 2, 4]):
        forest.insert(state, said)
    handles = forest.begin([state], [range(64)])
    forest.draft(handles, max_nodes=1, room=[1], chain=True)
    forest.commit(handles, [[1]])
    forest.end(handles)
    forest.tree(state)
    for number in range(2, 5):
        forest.insert(DialogueState(exact=number), range(_LONG))
    DraftBudget(0.0)
