"""Compilation or loading of the kernels before the first turn, so that no step of an engine waits for it."""

from __future__ import annotations

from functools import cache

from turntree.spec_tree.budget.draft_budget import DraftBudget
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.kernels.batch import move_on
from turntree.spec_tree.kernels.candidates import find_places
from turntree.spec_tree.kernels.growth import grow
from turntree.spec_tree.kernels.side_compiler import SideCompiler, signatures
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.store.forest import SpecForest

_LONG = 1 << 16
"""Tokens of a turn such that three exceed the log's initial room."""


@cache
def warm_up() -> None:
    """Run once what live turns need: begin, draft, commit and end them, drop the oldest, let the log grow.

    Where nothing is compiled yet, a second process compiles half of it. Further calls in a process do nothing.
    """
    forest, state = SpecForest(ForestConfig(rollouts_per_state=1)), DialogueState(exact=1)
    with SideCompiler() as other:
        for sampled in ([1, 2, 3], [1, 2, 4]):
            forest.insert(state, sampled)
        handles = forest.begin([state], [range(64)])
        forest.tree(state)
        for number in range(2, 5):
            forest.insert(DialogueState(exact=number), range(_LONG))
        if other.works():  # a part of what ``draft`` needs, while the other process makes ``grow`` for it
            find_places.compile(signatures()[find_places])
            other.wait_for(grow)
        forest.draft(handles, max_nodes=1, room=[1], chain=True)
        DraftBudget(0.0)
        other.wait_for(move_on)
        forest.commit(handles, [[1]])
        forest.end(handles)
