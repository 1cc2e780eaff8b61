"""Invariants of drafts and of the store's internals.

Each check returns complaints instead of raising, so that a test can show that the check notices a fault.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from turntree.spec_tree import DialogueState, DraftBatch, SpecForest, TreeNode
from turntree.spec_tree.kernels.indexing import follow_row
from turntree.spec_tree.kernels.layout import BACK, END, EXACT1, GRANULE, JUMP, START

Said = tuple[int, ...]


class Node(NamedTuple):
    token: int
    parent: int
    depth: int
    probability: float


def rows_of(batch: DraftBatch) -> list[list[Node]]:
    columns = [batch.tokens, batch.parents, batch.depths, batch.probabilities]
    nodes = [Node(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
    return [nodes[a:b] for a, b in pairwise(batch.offsets.tolist())]


def paths(nodes: Iterable[Node]) -> list[Said]:
    ways: list[Said] = []
    for node in nodes:
        ways.append((*(ways[node.parent] if node.parent >= 0 else ()), node.token))
    return ways


def malformed(nodes, *, last, room, max_nodes, ends=(), chain=False, floor=0.0):
    ends = set(ends)
    wrong = []
    if len(nodes) > max_nodes:
        wrong.append(f"{len(nodes)} nodes, {max_nodes} allowed")
    if nodes and last in ends:
        wrong.append("a draft after a turn's end")
    if len({(node.parent, node.token) for node in nodes}) < len(nodes):
        wrong.append("siblings alike")
    for index, node in enumerate(nodes):
        if not -1 <= node.parent < index:
            wrong.append(f"node {index} stands before its parent {node.parent}")
            continue
        above = nodes[node.parent] if node.parent >= 0 else Node(last, -1, 0, 1.0)
        if node.token < 0:
            wrong.append(f"node {index} is no token: {node.token}")
        if node.depth != above.depth + 1 or node.depth > room:
            wrong.append(f"node {index} has depth {node.depth} under {above.depth}, room {room}")
        if not 0 < node.probability <= above.probability or node.probability < floor * (1 - 1e-6):
            wrong.append(f"node {index} has probability {node.probability} under {above.probability}, floor {floor}")
        if index and node.probability > nodes[index - 1].probability:
            wrong.append(f"node {index} is likelier than the one before it")
        if above.token in ends:
            wrong.append(f"node {index} follows an end")
        if chain and node.parent != index - 1:
            wrong.append(f"node {index} branches off in a chain")
    return wrong


def unfounded(nodes, last, said, context=(), alike=lambda token: token):
    """Return the edges of one row's draft that no turn has taken.

    Below the first level, an edge is a pair of adjacent tokens in a turn of ``said`` or in the turn's own ``context``.
    On the first level, a position at which turns agreed until their last token also counts: the drafted token must be
    one that followed there. First tokens of a pair that are ``alike`` count as equal: see ``same_followers``.
    """
    said = list(said)
    gone = [pair for turn in said for pair in pairwise((START, *turn))] + list(pairwise(context))
    pairs = {(alike(first), second) for first, second in gone}
    anyone = {token for turn in said for token in turn}
    wrong = []
    for node in nodes:
        above = nodes[node.parent].token if node.parent >= 0 else last
        if (alike(above), node.token) not in pairs and not (node.parent < 0 and node.token in anyone):
            wrong.append(f"{above} -> {node.token} at depth {node.depth} was never said")
    return wrong


def same_followers(env: str) -> Callable[[int], int]:
    """Return tokens of an environment that the store does not distinguish when it remembers followers."""
    key = np.uint64(DialogueState(exact=1, env=env).backoff_states()[3])
    return cache(lambda token: int(_follow_row(key, np.int32(token))))


@njit
def _follow_row(env: int, token: int) -> int:
    return follow_row(env, token)


def best_path(nodes: Sequence[Node], said: Sequence[int]) -> int:
    """Return how many tokens of ``said`` a draft has on one path."""
    children = {(node.parent, node.token): index for index, node in enumerate(nodes)}
    at = -1
    for count, token in enumerate(said):
        if (at, token) not in children:
            return count
        at = children[at, token]
    return len(said)


def turns_in(tree: TreeNode) -> Counter[Said]:
    found: Counter[Said] = Counter()
    stack: list[tuple[TreeNode, Said]] = [(tree, ())]
    while stack:
        node, path = stack.pop()
        here = node.count - sum(child.count for child in node.children)
        if here and path:
            found[path] = here
        stack.extend((child, (*path, child.token)) for child in node.children)
    return found


def indexed(forest: SpecForest) -> list[Said]:
    store, live = forest.rollouts.store, forest.live_table.turns
    for turn in store.turns():
        if turn.live >= 0:
            turn.tokens = int(live.length[turn.live])
    return [tuple(store.read(turn).tolist()) for turn in store.turns()]


def broken(forest: SpecForest) -> list[str]:
    """Return what is inconsistent inside a store: slots, owners, free space, counts."""
    rollouts, live = forest.rollouts, forest.live_table.turns
    store = rollouts.store
    log, turns = store.log, store.turns()
    wrong = []

    def need(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    used = [turn.slot for turn in turns]
    need(sorted([0, *used, *store.free]) == list(range(len(store.keys))), "a slot is lost or used twice")
    need(not store.keys[[0, *store.free]].any(), "a free slot has a key")
    owned = {slot: set((log.owner == slot).nonzero()[0].tolist()) for slot in used}
    need(set(log.owner.tolist()) <= {0, *used}, "a granule belongs to no turn")
    head, clear = int(store.head[0]), store.cleared
    need(GRANULE <= head <= clear <= len(log.tokens) and head % GRANULE == 0, f"head {head}, clear to {clear}")
    need(not log.owner[head // GRANULE : clear // GRANULE].any(), "the free room belongs to a turn")
    for turn in turns:
        need(store.keys[turn.slot].tolist() == turn.keys.tolist(), "a turn's keys are not its own")
        granules, last, tokens = _walk(turn.start, log)
        need(granules <= owned[turn.slot], "a turn stands where it owns nothing")
        spare = owned[turn.slot] - granules
        need(spare <= set(range(last + 1, last + 9)), "a turn owns what it does not reach")
        expected = int(live.length[turn.live]) if turn.live >= 0 else turn.tokens
        need(tokens == expected, f"a turn of {expected} tokens has {tokens} in the log")
        if turn.live >= 0:
            need(int(live.turn[turn.live]) == turn.slot, "a live turn does not know its slot")
            need(int(log.tokens[live.position[turn.live] + 1]) in (END, JUMP), "a live turn goes on past its end")
    finished = [turn for state in rollouts.by_state.values() for turn in state.turns]
    going = [turn for _, turn in rollouts.by_row.values() if turn is not None]
    need(len(finished) == len({id(turn) for turn in finished}), "a turn is held twice")
    need({id(t) for t in turns} == {id(t) for t in finished + going}, "the log and the states hold different turns")
    need(rollouts.tokens == sum(turn.tokens for turn in finished), "the count of tokens is wrong")
    need(
        rollouts.tokens_again == sum(turn.tokens for turn in finished if turn.again),
        "the count of tokens of turns that were written again is wrong",
    )
    need(rollouts.tokens <= store.capacity, "more tokens than the log has")
    for exact, state in rollouts.by_state.items():
        need(state.exact == exact, "a state stands under another's key")
        need(bool(state.live or state.turns), "an empty state is held")
        need(state.live == sum(owner is state for owner, _ in rollouts.by_row.values()), "a state's live turns")
        need(len(state.turns) + rollouts.cold.count(exact) <= rollouts.quota, "a state has more than its quota")
    cold = rollouts.cold
    need(cold.tokens == sum(len(turn) for state in cold.states() for turn in cold.look(state)), "cold tokens")
    need(cold.tokens <= forest.config.max_cold_tokens, "too many cold tokens")
    return wrong


def _walk(start: int, log: object) -> tuple[set[int], int, int]:
    tokens, links = log.tokens, log.links[EXACT1]  # type: ignore[attr-defined]
    granules, count, at = {start // GRANULE}, 0, start
    assert tokens[start] == START, f"no turn begins at {start}"
    while True:
        at += 1
        granules.add(at // GRANULE)
        mark = int(tokens[at])
        if mark == END:
            return granules, at // GRANULE, count
        if mark == JUMP:
            before, at = at, int(links[at])
            granules.add(at // GRANULE)
            assert tokens[at] == BACK, f"no piece begins at {at}"
            assert int(links[at]) == before - 1, f"the piece at {at} does not know where it came from"
        else:
            assert mark >= 0, f"mark {mark} within a turn"
            count += 1


def misremembered(
    forest: SpecForest, finished: Mapping[DialogueState, Iterable[Said]], live: Iterable[Said]
) -> list[str]:
    """Return turns that a forest holds wrongly or too often, and turns that are unaccounted for."""
    growing = Counter(live)
    wrong = []
    total = 0
    for state, turns in finished.items():
        said = Counter(turns)
        total += said.total()
        more = turns_in(forest.tree(state)) - said - growing
        wrong += [f"{turn} was not said at {state}" for turn in more]
    stats = forest.stats()
    if stats.rollouts + stats.evicted_rollouts != total:
        wrong.append(f"{total} turns finished: {stats.rollouts} are held and {stats.evicted_rollouts} let go")
    return wrong
