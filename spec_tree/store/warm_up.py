from __future__ import annotations

from functools import cache

from turntree.spec_tree.budget.draft_budget import DraftBudget
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.store.forest import SpecForest

_LONG_TURN = 1 << 16  #: length of a turn in tokens: three such turns exceed the log's initial size


@cache
def warm_up() -> None:
    """Compile or load the kernels, so that no step of an engine waits for them.

    Runs each operation on live turns once: begin, draft, commit, end, drop the oldest turns, grow the log. Only the
    first call in a process has an effect.
    """
    forest, state = SpecForest(ForestConfig(rollouts_per_state=1)), DialogueState(exact=1)
    for sampled in ([1, 2, 3], [1, 2, 4]):
        forest.insert(state, sampled)
    handles = forest.begin([state], [range(64)])
    forest.tree(state)
    for number in range(2, 5):
        forest.insert(DialogueState(exact=number), range(_LONG_TURN))
    forest.draft(handles, max_nodes=1, max_depths=[1], chain=True)
    DraftBudget(0.0)
    forest.commit(handles, [[1]])
    forest.end(handles)
