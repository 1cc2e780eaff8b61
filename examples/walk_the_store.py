"""A walk through the store of earlier turns, step by step.

python examples/walk_the_store.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from turntree.agents.errors import needed_packages

with needed_packages("tree"):
    from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

END = 9
"""The token that ends a turn."""


def main() -> SpecForest:
    # A forest knows token ids and states, nothing else. Nothing is drafted behind an end token.
    forest = SpecForest(ForestConfig(end_tokens=frozenset({END})))

    # A state is what the policy was asked, token by token, with the task and the tool calls that led there.
    asked = [1, 2, 3]
    state = DialogueState.from_tokens(asked, task="sum/7", env="mine")

    # Three turns were sampled here before; two of them begin alike.
    forest.insert_all([state] * 3, [[4, 5, 6, END], [4, 5, 7, END], [8, END]])
    print(forest.tree(state))

    # A live turn is drafted as a tree: the likely branches, each node with its chance to be accepted.
    (turn,) = forest.begin([state], [np.array(asked)])
    draft = forest.draft([turn], max_nodes=8, max_depths=[16])
    for node, token in enumerate(draft.tokens.tolist()):
        indent = "  " * int(draft.depths[node])
        print(f"{indent}{token}  below {draft.parents[node]}, {draft.probabilities[node]:.2f}")

    # The engine verifies and reports what was really sampled. Siblings can draft these tokens at once.
    forest.commit([turn], [[4, 5, 7]])
    (sibling,) = forest.begin([state])
    forest.commit([sibling], [[4, 5]])
    print("after 4 5:", forest.draft([sibling], max_nodes=2, max_depths=[8]).tokens.tolist())
    forest.end([turn, sibling])

    # Another prompt of the same task has no turns of its own: the backoff_states falls back to the task, then the
    # environment.
    elsewhere = DialogueState.from_tokens([1, 2, 3, 0], task="sum/7", env="mine")
    (other,) = forest.begin([elsewhere])
    print("another state of the task:", forest.draft([other], max_nodes=4, max_depths=[8]).tokens.tolist())
    forest.end([other], keep=False)

    # Memory is bounded, and a file is whole or not there.
    print(forest.stats())
    with TemporaryDirectory() as folder:
        forest.save(Path(folder) / "store.npz")
        return SpecForest.load(Path(folder) / "store.npz")


if __name__ == "__main__":
    main()
