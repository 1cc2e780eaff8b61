import numpy as np

from turntree.spec_tree import DraftBatch


def draft_trees(*rows: list[tuple[int, int]], last_probability: float = 1.0) -> DraftBatch:
    """Build trees from (token, parent) pairs.

    Probabilities fall from 0.9 to ``last_probability``, or are all 1.
    """
    depths: list[int] = []
    for row in rows:
        own: list[int] = []
        for _, parent in row:
            own.append(1 if parent < 0 else own[parent] + 1)
        depths += own
    nodes = [node for row in rows for node in row]
    first = 1.0 if last_probability == 1.0 else 0.9
    return DraftBatch(
        tokens=np.array([token for token, _ in nodes], np.int32),
        parents=np.array([parent for _, parent in nodes], np.int32),
        depths=np.array(depths, np.int32),
        probabilities=np.linspace(first, last_probability, len(nodes), dtype=np.float32),
        offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
    )


def random_trees(rng: np.random.Generator, rows: int, most: int) -> DraftBatch:
    """Build random trees with distinct siblings and probabilities that fall along each path."""
    trees = []
    for _ in range(rows):
        tree: list[tuple[int, int]] = []
        for node in range(int(rng.integers(0, most + 1))):
            parent = int(rng.integers(-1, node))
            taken = {token for token, above in tree if above == parent}
            tree.append((int(rng.choice([t for t in range(most + 2) if t not in taken])), parent))
        trees.append(tree)
    return draft_trees(*trees, last_probability=0.2)
