"""Find candidates: positions in stored turns where the preceding tokens match the end of a turn.

A draft is copied from the tokens that follow its candidates. Lookups go from the newest position to the oldest, by
four keys: the last four tokens in the environment, the last token in the same exact state, the last two tokens in
the same task, and the last two tokens in the environment. More candidates come from the turn's own context, and
from around its anchors: positions in stored turns that agreed with the turn until recently.

Invariant: for every kind of candidate except ``UNMATCHED``, the token at the position equals the turn's last token.
The turn that owns the position is still stored, and has the key that the kind stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.compiled import index, inlined, int64, part
from turntree.spec_tree.kernels.indexing import context_head, head_of, mix
from turntree.spec_tree.kernels.instructions import alike8, equal16, lowest, where
from turntree.spec_tree.kernels.layout import (
    AROUND_ANCHOR,
    AT_ANCHOR,
    BACK,
    CANDIDATES,
    CONTEXT,
    END,
    ENV,
    ENV2,
    ENV4,
    ENV_KEY,
    EXACT,
    EXACT1,
    EXACT_KEY,
    GRANULE,
    JUMP,
    MATCH,
    NEAR_ANCHOR,
    TASK,
    TASK2,
    TASK_KEY,
    TOOLS,
    TOOLS_KEY,
    UNMATCHED,
    ContextLog,
    DraftSources,
    TokenLog,
    TurnKeys,
)

WALK = np.int64(16)  #: maximum links of one kind that a lookup follows at the root, the turn's newest token
_WALK_MORE = np.int64(8)  #: maximum links of one kind that a lookup follows below the root
#: per kind of links: the key that the turn at the candidate must share
_OWNER_KEY = np.array([EXACT_KEY, TASK_KEY, ENV_KEY, ENV_KEY])
_MIN_MATCH = np.array([1, 2, 2, 3])  #: per kind of links: minimum equal tokens, since different keys may collide
_ENOUGH = 24  #: candidates from which on the two-token lookups by task and environment are skipped
WINDOW = 10  #: tokens before and after an anchor in which the last token is searched
_CONTEXT_WALK = 8  #: maximum links in the turn's own context that a lookup follows
_ANCHOR_OFFSETS = np.array([0, -1, 1])  #: offsets from an anchor at which ``UNMATCHED`` candidates are added

#: length class of an agreement (number of equal tokens, 0 to ``MATCH``); from 13 on a class covers several lengths
LENGTH_CLASSES = np.concatenate([np.arange(13), np.repeat(np.arange(13, 18), [4, 8, 8, 16, MATCH - 48])])


@inlined
def length_class(length: int) -> int:
    found: int = index(LENGTH_CLASSES[index(min(length, int64(MATCH)))])
    return found


@inlined
def next_position(
    position: int, kind: int, context_end: int, log: TokenLog, contexts: ContextLog
) -> tuple[int, np.int32]:
    """Return the position after ``position`` in its turn (or context) and its token; -1 if there is none yet."""
    position = index(position + 1)
    token = np.int32(-1)
    if kind == CONTEXT:
        if position < context_end:
            token = contexts.tokens[position]
    else:
        token = log.tokens[position]
        if token == JUMP:
            # The link leads to the ``BACK`` mark before the next piece. A writer may just have overwritten the link,
            # hence the bounds check: a wrong token is only a bad draft, but a read out of bounds is a crash.
            position = int64(log.links[EXACT1, position]) + 1
            token = log.tokens[index(position)] if 0 < position < len(log.tokens) else np.int32(-1)
    return position, token


@inlined
def _age_of(newest: int, position: int, age: int, size: int) -> int:
    # Turns that were live together link to each other out of order, by at most a quarter of the ring. A larger
    # step towards newer positions means that the linked position has been overwritten: -1 ends the walk.
    if position < 0:
        return -1
    since, spread = newest - position, size // 4
    if since < -spread:  # the ring has wrapped around between the two positions
        since += size
    return max(since, age) if since + spread >= age else -1


@part
def agreement(position: int, tail: NDArray[np.int32], last: int, log: TokenLog) -> int:
    """Count how many tokens back from ``position`` equal the tokens back from ``tail[last]``, up to ``MATCH``.

    An agreement that reaches back to the start of both turns counts as ``MATCH``.
    """
    tokens = log.tokens
    length: int = int64(0)
    while length < MATCH:
        if position >= 8 and last - length >= 8:
            # Compare eight tokens at once while all agree. Marks are negative, so a mark ends this fast path.
            alike = alike8(tokens, position, tail, last - length)
            length += alike
            position -= alike
            if alike == 8:
                continue
        if position < 0:
            break
        token = tokens[position]
        if token == BACK:
            position = int64(log.links[EXACT1, position])  # the last token of the piece before
            if position < 0:
                break
            token = tokens[position]
        if token != tail[last - length]:
            break
        if token < 0:  # both are at ``START``: the turns agree from their first token on
            return MATCH
        length += 1
        position -= 1
    return length if length < MATCH else MATCH


@part
def find_candidates(turn: Any, row: int, sources: DraftSources, work: Any) -> None:
    newest, root, count = work.newest_links[row], int64(0), int64(0)
    # The order matters: a candidate with a lower index counts as newer, and a position keeps the kind of its first
    # lookup. Four equal tokens are the best evidence, so candidates of ``ENV4`` come first.
    count = walk(turn, root, count, int64(ENV4), newest[ENV4], sources, work)
    count = walk(turn, root, count, int64(EXACT1), newest[EXACT1], sources, work)
    if count < _ENOUGH and turn.keys[TASK_KEY] != turn.keys[EXACT_KEY]:
        count = walk(turn, root, count, int64(TASK2), newest[TASK2], sources, work)
    if count < _ENOUGH:
        count = walk(turn, root, count, int64(ENV2), newest[ENV2], sources, work)
    turn.candidate_count = count
    _in_context(turn, sources.contexts)
    _near_anchors(turn, sources.log, sources.turns)


@part
def find_more_candidates(turn: Any, node: int, level: int, count: int, sources: DraftSources, work: Any) -> int:
    """Look up more candidates in the same state for ``node``, ``level`` tokens below the root.

    Writes the path to the node after the turn's tail, which must have space for the path. Returns the number of
    candidates in use. Candidates from ``count`` on belong to the node. Their ``matches`` count equal tokens from
    the root back, so a match shorter than the path is negative.
    """
    tail, last, z = turn.tail, int64(turn.last) + level, int64(node)
    # Write the path from the node up to the root backwards, so that the tail reads as if it had been sampled.
    for i in range(level):
        tail[last - i] = turn.node_token[z]
        z = int64(turn.node_parent[z])
    heads = sources.log.heads[EXACT1]
    position = int64(heads[head_of(mix(turn.keys[EXACT_KEY], tail[last]), heads)])
    more: int = walk(turn, int64(node), count, int64(EXACT1), position, sources, work)
    return more


@part
def walk(turn: Any, node: int, count: int, link: int, newest: int, sources: DraftSources, work: Any) -> int:
    """Add the candidates that one kind of links leads to, newest first, and return the number of candidates in use.

    The candidates continue ``node``; below the root (0), the path to it stands after the turn's tail. ``newest`` is the
    newest position with the key of these links, -1 for none.
    """
    log, tail, candidates = sources.log, turn.tail, turn.candidates
    # For the root, ``work`` still holds the values of an earlier draft.
    level = int64(work.depth[node]) if node > 0 else int64(0)
    followed = int64(work.first_candidate[node]) if node > 0 else int64(-1)
    tokens, links, owner = log.tokens, log.links[link], log.owner
    keys, column, least, last = turn.keys, _OWNER_KEY[link], _MIN_MATCH[link], int64(turn.last) + level
    # At the root, no position is added twice. Below the root, a sibling may have added the position for itself, so
    # only ``_is_followed`` can tell whether the position is new for this node.
    most, since, known = (WALK, int64(0), count) if level == 0 else (_WALK_MORE, count, count)
    position, walked, age = int64(newest), 0, int64(0)
    while position >= 0 and age >= 0 and walked < most and count < CANDIDATES:
        walked += 1
        position = index(position)
        # Hashes collide, so compare the token. If ``END`` follows, there is nothing to copy yet.
        if tokens[position] == tail[last] and tokens[position + 1] != END:
            owned = sources.turns[index(owner[index(position // GRANULE)])]
            # Cheap checks first: counting the agreement reads another cache line.
            new = owned[column] == keys[column] and where(position, candidates, since, known) < 0
            new = new and not _is_followed(position, followed, work)
            length = agreement(position, tail, last, log) if new else int64(0)
            if length >= least:
                candidates[count], turn.matches[count] = position, length - level
                turn.kinds[count] = _kind_of(owned, keys)
                count = index(count + 1)
        position = int64(links[position])
        age = _age_of(newest, position, age, len(tokens))
    return count


@inlined
def _is_followed(position: int, first: int, work: Any) -> bool:
    c = first
    while c >= 0 and work.at[c] != position:
        c = int64(work.following[c])
    return c >= 0


@inlined
def _kind_of(owned: NDArray[np.uint64], keys: NDArray[np.uint64]) -> int:
    if owned[EXACT_KEY] == keys[EXACT_KEY]:
        return EXACT
    if owned[TOOLS_KEY] == keys[TOOLS_KEY]:
        return TOOLS
    return TASK if owned[TASK_KEY] == keys[TASK_KEY] else ENV


@part
def _in_context(turn: Any, contexts: ContextLog) -> None:
    tail, last, start, stop = turn.tail, turn.last, turn.context[0], turn.context[1]
    token = tail[last]
    if token < 0 or tail[last - 1] < 0:
        return
    tokens, link, candidates, matches, kinds = contexts.tokens, contexts.link, turn.candidates, turn.matches, turn.kinds
    count, walked = int64(turn.candidate_count), 0
    position = int64(contexts.heads[context_head(start, token, tail[last - 1], contexts)])
    while position > 0 and walked < _CONTEXT_WALK:
        walked += 1
        # Contexts share one table of heads: skip positions of other contexts with the same hash.
        if start < position < stop - 1:
            length = 0
            while length < MATCH and position - length >= start and last >= length:
                if tokens[position - length] != tail[last - length]:
                    break
                length += 1
            if length >= 2:
                candidates[count], matches[count], kinds[count] = position, length, CONTEXT
                count += 1
        position = int64(link[position])
    turn.candidate_count = count


@part
def _near_anchors(turn: Any, log: TokenLog, turns: TurnKeys) -> None:
    token, count = turn.tail[turn.last], int64(turn.candidate_count)
    for i in range(turn.anchor_count):
        anchor, age = int64(turn.anchors[i]), turn.ages[i]
        if turns[log.owner[anchor // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
            continue  # the anchor's turn was dropped, or its position overwritten
        if token >= 0:
            count = _around(anchor, count, turn, log, turns)
        if age > 0 and count < CANDIDATES - len(_ANCHOR_OFFSETS):
            count = _unmatched(anchor, age, count, turn, log, turns)
    turn.candidate_count = count


@inlined
def _around(anchor: int, count: int, turn: Any, log: TokenLog, turns: TurnKeys) -> int:
    tokens, candidates, kinds, tail, last = log.tokens, turn.candidates, turn.kinds, turn.tail, int64(turn.last)
    # ``same`` has one bit for each of the 32 positions from ``start`` on, which all lie in the log. The mask keeps the
    # bits of ``first:stop``, at most ``WINDOW`` positions from the anchor.
    start = max(min(anchor - WINDOW, len(tokens) - 32), 0)
    first, stop = max(anchor - WINDOW, 1), min(anchor + WINDOW, len(tokens) - 2) + 1
    same = equal16(tokens, start, tail[last]) | equal16(tokens, start + 16, tail[last]) << 16
    same &= (int64(1) << (stop - start)) - (int64(1) << (first - start))
    while same:
        position = start + lowest(same)
        same &= same - 1  # clears the lowest bit
        if tokens[position + 1] == END:
            continue
        found = where(position, candidates, int64(0), count)
        while found >= 0 and kinds[found] == CONTEXT:  # an equal number, but of a position in the context log
            found = where(position, candidates, found + 1, count)
        distance = abs(position - anchor)
        kind = AT_ANCHOR if distance == 0 else NEAR_ANCHOR if distance <= 2 else AROUND_ANCHOR
        if found < 0:
            if count == CANDIDATES or turns[log.owner[position // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
                continue
            candidates[count], turn.matches[count], kinds[count] = position, agreement(position, tail, last, log), kind
            count += 1
        elif kinds[found] < AT_ANCHOR or kinds[found] > kind:
            kinds[found] = kind  # being near an anchor is better evidence than the owner; the nearest anchor wins
    return count


@inlined
def _unmatched(anchor: int, age: int, count: int, turn: Any, log: TokenLog, turns: TurnKeys) -> int:
    tokens, token = log.tokens, turn.tail[turn.last]
    for beside in range(len(_ANCHOR_OFFSETS)):
        position = anchor + _ANCHOR_OFFSETS[beside]
        if position < 1 or position >= len(tokens) - 1 or tokens[position] < 0 or tokens[position] == token:
            continue
        if turns[log.owner[position // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
            continue
        # The tokens do not agree, so ``matches`` holds a column number instead of a length, see ``LENGTHS``.
        turn.candidates[count], turn.matches[count] = position, min(age - 1, 7) + 8 * beside
        turn.kinds[count] = UNMATCHED
        count += 1
    return count
