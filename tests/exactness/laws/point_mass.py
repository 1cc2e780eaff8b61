"""The exact distribution of turns whose drafts are a function of known tokens.

The tested code is ``turntree.spec_tree.rules.verify``; only the choices around it are enumerated. ``broken`` names a
fault: the control, which a proof must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from draft_trees import draft_trees

from laws.enumeration import Choose, Floats, Region, Tokens, outcomes, regions, toss
from laws.policies import Law, Policy, along, finish
from laws.token_counts import token_counts, token_counts_on_paths
from turntree.spec_tree.rules.transforms import Transforms, distribution
from turntree.spec_tree.rules.verify import point_mass_accept, point_mass_chain, prefix, sample_then_match


@cache
def point_mass_coin(p: float) -> list[Region]:
    return regions(lambda coins: point_mass_accept(np.full(coins.shape, p), coins))


def random_tree(seed: int, context: Tokens, vocabulary: int, most: int = 5) -> list[tuple[int, int]]:
    """Return (token, parent) pairs of a tree with distinct siblings that depends on the context alone."""
    rng = np.random.default_rng([seed, len(context), *context])
    nodes: list[tuple[int, int]] = []
    for _ in range(int(rng.integers(0, most + 1))):
        node = int(rng.integers(vocabulary)), int(rng.integers(-1, len(nodes)))
        if node not in nodes:
            nodes.append(node)
    return nodes


def chain_of(tokens: Tokens) -> list[tuple[int, int]]:
    return [(token, depth - 1) for depth, token in enumerate(tokens)]


def path_to(nodes: list[tuple[int, int]], node: int) -> Tokens:
    above: list[int] = []
    while node >= 0:
        token, node = nodes[node]
        above.append(token)
    return tuple(above[::-1])


def walk(nodes: list[tuple[int, int]], room: int, draw: Callable[[Tokens], int]) -> Tokens:
    """Return one step of ``sample_then_match``; ``draw`` receives the path to its node."""
    emitted: list[int] = []

    def draw_one(rows: np.ndarray, indices: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        emitted.append(draw(path_to(nodes, int(indices[0]) - 1)))
        return np.array(emitted[-1:]), np.zeros(1)

    stops = np.zeros(1, np.bool_)
    sample_then_match(draft_trees(nodes), draw_one, np.array([room]), lambda rows, tokens: stops)
    return tuple(emitted)


def tree_law(p: Policy, length: int, vocabulary: int, seed: int) -> Law:
    # Another tree at each step.

    def run(choose: Choose) -> Tokens:
        tokens: Tokens = ()
        while len(tokens) < length:
            base, nodes = tokens, random_tree(seed, tokens, vocabulary)
            tokens += walk(nodes, length - len(tokens), lambda path, base=base: choose(p(base + path)))
        return tokens

    return outcomes(run)


def transformed(seed: int, vocabulary: int, transforms: Transforms) -> Policy:
    prompt = token_counts([0], vocabulary)
    return lambda context: distribution(
        logits(seed, vocabulary, context), transforms, prompt=prompt, output=token_counts(context, vocabulary)
    )


def logits(seed: int, vocabulary: int, context: Tokens) -> Floats:
    return np.random.default_rng([seed, len(context), *context]).normal(0, 1.5, vocabulary)


def transformed_tree_law(seed: int, length: int, vocabulary: int, transforms: Transforms, broken: bool = False) -> Law:
    """Sample, then match, with the distributions of all nodes computed at once, as an engine does.

    ``broken``: the penalties ignore tokens on the path to a node.
    """
    prompt = token_counts([0], vocabulary)

    def run(choose: Choose) -> Tokens:
        tokens: Tokens = ()
        while len(tokens) < length:
            nodes = random_tree(seed, tokens, vocabulary)
            draft = draft_trees(nodes)
            counts = token_counts_on_paths(draft.tokens, draft.parents, token_counts(tokens, vocabulary))
            if broken:
                counts[:] = counts[0]
            paths = [path_to(nodes, node) for node in range(-1, len(nodes))]
            raw = np.stack([logits(seed, vocabulary, tokens + path) for path in paths])
            laws = dict(zip(paths, distribution(raw, transforms, prompt=prompt, output=counts), strict=True))
            tokens += walk(nodes, length - len(tokens), lambda path, laws=laws: choose(laws[path]))
        return tokens

    return outcomes(run)


def chain_law(p: Policy, drafted: Tokens, broken: str = "") -> Law:
    """Verify a chain with coins, then decode plainly to the chain's length.

    Faults: ``resample`` draws from p itself after a rejection, ``greedy`` takes the most probable other token, and
    ``duplicate`` tries each token twice, as two equal children would.
    """
    length, tokens = len(drafted), np.array(drafted)

    def run(choose: Choose) -> Tokens:
        laws = along(p, drafted, length + 1)
        chances = laws[np.arange(length), tokens]
        coins = np.array([toss(choose, point_mass_coin(float(chance))) for chance in chances])
        if not broken:
            emitted = point_mass_chain(laws, tokens, coins, choose)
            return finish(choose, p, tuple(emitted)[:length], length)
        stays = point_mass_accept(chances, coins)
        if broken == "duplicate":
            again = np.array([toss(choose, point_mass_coin(float(chance))) for chance in chances])
            stays = stays | point_mass_accept(chances, again)
        kept = int(prefix(stays))
        if kept == length:
            return drafted
        rest = laws[kept].copy()
        if broken != "resample":
            rest[drafted[kept]] = 0.0
        if not rest.any():
            return finish(choose, p, drafted[: kept + 1], length)
        last = int(rest.argmax()) if broken == "greedy" else choose(rest / rest.sum())
        return finish(choose, p, (*drafted[:kept], last), length)

    return outcomes(run)


def sibling_law(p: Policy, length: int, count: int, broken: str = "") -> Law:
    """Return the joint distribution of siblings that take turns and draft from each other's tokens.

    ``known`` (a fault): the ratio rule treats a sibling's token as a draw from q = p, which it always accepts.
    """

    def run(choose: Choose) -> Tokens:
        turns: list[Tokens] = [()] * count
        while any(len(tokens) < length for tokens in turns):
            for own in range(count):
                tokens = turns[own]
                if len(tokens) == length:
                    continue
                paths = [s[len(tokens) :] for s in turns if s[: len(tokens)] == tokens and len(s) > len(tokens)]
                if broken and paths:
                    turns[own] = tokens + paths[0]
                    continue
                nodes = merged(paths)
                turns[own] += walk(nodes, length - len(tokens), lambda path, tokens=tokens: choose(p(tokens + path)))
        return sum(turns, ())

    return outcomes(run)


def merged(paths: list[Tokens]) -> list[tuple[int, int]]:
    nodes: list[tuple[int, int]] = []
    for path in paths:
        parent = -1
        for token in path:
            if (token, parent) not in nodes:
                nodes.append((token, parent))
            parent = nodes.index((token, parent))
    return nodes
