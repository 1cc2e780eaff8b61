"""The places in the log from which a draft is copied: where earlier turns agree with a turn's last tokens.

Places are looked up newest first: by the last four tokens anywhere in the
environment, by the last one in the same exact state, by the last two in the same
task and environment, in the turn's own context, and around the anchors, where
earlier turns of the state agreed before they went another way for a while.
Each place comes with its kind (whose it is, how it was found) and how many tokens
up to it agree. For a node of a draft where few of these places are left, more are
looked up in the same state.

Invariant: at a place of a kind other than ``UNMATCHED`` the last token agrees,
and the turn that owns it is still kept and has the key that its kind says.
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

WALK = np.int64(16)
"""Links of one kind that are followed."""
_WALK_MORE = np.int64(8)
"""The same for a node below the root."""
_OWNED = np.array([EXACT_KEY, TASK_KEY, ENV_KEY, ENV_KEY])
"""By kind of links, the key that the owner of a place must share."""
_LEAST_OF = np.array([1, 2, 2, 3])
"""By kind of links, the tokens that must agree: another key may have the same hash."""
_ENOUGH = 24
"""Places from which on those of the whole task and environment are not looked up by two tokens."""
WINDOW = 10
"""Tokens before and behind an anchor among which the last token is looked for."""
_CONTEXT_WALK = 8
"""Links of the context that are followed."""
_BESIDE = np.array([0, -1, 1])
"""Where an anchor may be meant, by what an ``UNMATCHED`` place is counted as: there, one before, one behind."""


LENGTH_CLASSES = np.concatenate([np.arange(13), np.repeat(np.arange(13, 18), [4, 8, 8, 16, MATCH - 48])])
"""Class of an agreement of 0 to ``MATCH`` tokens: from 13 on there are several to one."""


@inlined
def length_class(length: int) -> int:
    """Class of an agreement of ``length`` tokens, which is not negative: 0 to 17."""
    of: int = index(LENGTH_CLASSES[index(min(length, int64(MATCH)))])
    return of


@inlined
def step_on(place: int, kind: int, context_end: int, log: TokenLog, contexts: ContextLog) -> tuple[int, np.int32]:
    """The position after ``place`` in its turn, or in the context for a place of that kind, and the token there.

    The token is negative where there is none, or where a writer is at it.
    """
    place = index(place + 1)
    token = np.int32(-1)
    if kind == CONTEXT:
        if place < context_end:
            token = contexts.tokens[place]
    else:
        token = log.tokens[place]
        if token == JUMP:
            # the link leads to a ``BACK``, behind which the turn goes on; a writer may have overwritten it just now
            place = int64(log.links[EXACT1, place]) + 1
            token = log.tokens[index(place)] if 0 < place < len(log.tokens) else np.int32(-1)
    return place, token


@inlined
def _older(newest: int, place: int, age: int, size: int) -> int:
    """How much older than ``newest`` a place is; -1 where a walk that has got to ``age`` is over.

    Turns that were live together link to each other out of order, but not over a quarter of the ring; what is
    newer than that has been written where an older place was.
    """
    if place < 0:
        return -1
    since, spread = newest - place, size // 4
    if since < -spread:  # the place lies before the end of the ring, the newest one behind its beginning
        since += size
    return max(since, age) if since + spread >= age else -1


@part
def agreement(place: int, tail: NDArray[np.int32], last: int, log: TokenLog) -> int:
    """How many tokens up to ``place`` equal those up to ``tail[last]``; ``MATCH`` from the beginning of the turn on."""
    tokens = log.tokens
    length: int = int64(0)
    while length < MATCH:
        if place >= 8 and last - length >= 8:
            # eight at once as long as all agree; a mark ends that, and what it means is seen to below
            alike = alike8(tokens, place, tail, last - length)
            length += alike
            place -= alike
            if alike == 8:
                continue
        if place < 0:
            break
        token = tokens[place]
        if token == BACK:
            place = int64(log.links[EXACT1, place])  # the last token of the piece before
            if place < 0:
                break
            token = tokens[place]
        if token != tail[last - length]:
            break
        if token < 0:  # ``START`` in both: they agree from the beginning on
            return MATCH
        length += 1
        place -= 1
    return length if length < MATCH else MATCH


@part
def find_places(turn: Any, row: int, sources: DraftSources, work: Any) -> None:
    """Fill the places of ``turn``, the ``row``-th of those that were looked ahead for, with agreement and kinds."""
    newest, root, count = work.newest_links[row], int64(0), int64(0)
    # The order matters: of two places, the one with the lower number is taken for the newer one, and a place that
    # was found before is left as it is. Four tokens that agree say most, so these places come first.
    count = walk(turn, root, count, int64(ENV4), newest[ENV4], sources, work)
    count = walk(turn, root, count, int64(EXACT1), newest[EXACT1], sources, work)
    if count < _ENOUGH and turn.keys[TASK_KEY] != turn.keys[EXACT_KEY]:
        count = walk(turn, root, count, int64(TASK2), newest[TASK2], sources, work)
    if count < _ENOUGH:
        count = walk(turn, root, count, int64(ENV2), newest[ENV2], sources, work)
    turn.place_count = count
    _in_context(turn, sources.contexts)
    _near_anchors(turn, sources.log, sources.turns)


@part
def find_more_places(turn: Any, node: int, level: int, count: int, sources: DraftSources, work: Any) -> int:
    """Look up more places in the same state, for ``node``, which is ``level`` tokens below the root.

    The path to the node is written behind the turn's tail, where there must be room for it.

    Returns:
        The places in use. Those from ``count`` on belong to the node; their agreement is that of the node less its
        level, so it may be negative.
    """
    tail, last, z = turn.tail, int64(turn.last) + level, int64(node)
    for i in range(level):
        tail[last - i] = turn.node_token[z]
        z = int64(turn.node_parent[z])
    heads = sources.log.heads[EXACT1]
    place = int64(heads[head_of(mix(turn.keys[EXACT_KEY], tail[last]), heads)])
    more: int = walk(turn, int64(node), count, int64(EXACT1), place, sources, work)
    return more


@part
def walk(turn: Any, node: int, count: int, link: int, newest: int, sources: DraftSources, work: Any) -> int:
    """Add the places that one kind of links leads to, from new to old.

    Args:
        turn: A ``LIVE_TURN``; below the root with the path to the node behind its tail.
        node: Where the places are to go on; 0 is the root, at which none is followed yet.
        work: A ``SCRATCH``.

    Returns:
        Places in use.
    """
    log, tail, places = sources.log, turn.tail, turn.places
    # of the root ``work`` has what an earlier draft left
    level = int64(work.depth[node]) if node > 0 else int64(0)
    followed = int64(work.first_place[node]) if node > 0 else int64(-1)
    tokens, links, owner = log.tokens, log.links[link], log.owner
    keys, column, least, last = turn.keys, _OWNED[link], _LEAST_OF[link], int64(turn.last) + level
    # at the root no place is taken twice; below, the same one may also have been found for another node
    most, since, known = (WALK, int64(0), count) if level == 0 else (_WALK_MORE, count, count)
    place, walked, age = int64(newest), 0, int64(0)
    while place >= 0 and age >= 0 and walked < most and count < CANDIDATES:
        walked += 1
        place = index(place)
        # a hash leads to tokens of other keys too, and at ``END`` there is nothing yet to copy
        if tokens[place] == tail[last] and tokens[place + 1] != END:
            owned = sources.turns[index(owner[index(place // GRANULE)])]
            # the cheap questions first: to count what agrees reads another line of memory
            new = owned[column] == keys[column] and where(place, places, since, known) < 0
            new = new and not _is_followed(place, followed, work)
            length = agreement(place, tail, last, log) if new else int64(0)
            if length >= least:
                places[count], turn.matches[count], turn.kinds[count] = place, length - level, _kind_of(owned, keys)
                count = index(count + 1)
        place = int64(links[place])
        age = _older(newest, place, age, len(tokens))
    return count


@inlined
def _is_followed(place: int, first: int, work: Any) -> bool:
    """Whether one of the places of a node, of which ``first`` is the first, has been followed up to ``place``."""
    c = first
    while c >= 0 and work.at[c] != place:
        c = int64(work.following[c])
    return c >= 0


@inlined
def _kind_of(owned: NDArray[np.uint64], keys: NDArray[np.uint64]) -> int:
    """The nearest kind that the keys of a place's owner allow."""
    if owned[EXACT_KEY] == keys[EXACT_KEY]:
        return EXACT
    if owned[TOOLS_KEY] == keys[TOOLS_KEY]:
        return TOOLS
    return TASK if owned[TASK_KEY] == keys[TASK_KEY] else ENV


@part
def _in_context(turn: Any, contexts: ContextLog) -> None:
    """Add the places of the turn's own context where the last two tokens agree."""
    tail, last, start, stop = turn.tail, turn.last, turn.context[0], turn.context[1]
    token = tail[last]
    if token < 0 or tail[last - 1] < 0:
        return
    tokens, link, places, matches, kinds = contexts.tokens, contexts.link, turn.places, turn.matches, turn.kinds
    count, walked = int64(turn.place_count), 0
    place = int64(contexts.heads[context_head(start, token, tail[last - 1], contexts)])
    while place > 0 and walked < _CONTEXT_WALK:
        walked += 1
        if start < place < stop - 1:  # positions of other contexts with the same hash lie outside
            length = 0
            while length < MATCH and place - length >= start and last >= length:
                if tokens[place - length] != tail[last - length]:
                    break
                length += 1
            if length >= 2:
                places[count], matches[count], kinds[count] = place, length, CONTEXT
                count += 1
        place = int64(link[place])
    turn.place_count = count


@part
def _near_anchors(turn: Any, log: TokenLog, turns: TurnKeys) -> None:
    """Add the places around anchors where the last token agrees, and the anchors themselves."""
    token, count = turn.tail[turn.last], int64(turn.place_count)
    for i in range(turn.anchor_count):
        anchor, age = int64(turn.anchors[i]), turn.ages[i]
        if turns[log.owner[anchor // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
            continue  # the turn that it was in has been forgotten
        if token >= 0:
            count = _around(anchor, count, turn, log, turns)
        if age > 0 and count < CANDIDATES - len(_BESIDE):
            count = _unmatched(anchor, age, count, turn, log, turns)
    turn.place_count = count


@inlined
def _around(anchor: int, count: int, turn: Any, log: TokenLog, turns: TurnKeys) -> int:
    """Add the places up to ``WINDOW`` from ``anchor`` where the last token agrees; returns the places in use."""
    tokens, places, kinds, tail, last = log.tokens, turn.places, turn.kinds, turn.tail, int64(turn.last)
    # one bit a position from ``start`` on, 32 that are surely readable; those of ``first:past`` are wanted
    start = max(min(anchor - WINDOW, len(tokens) - 32), 0)
    first, past = max(anchor - WINDOW, 1), min(anchor + WINDOW, len(tokens) - 2) + 1
    same = equal16(tokens, start, tail[last]) | equal16(tokens, start + 16, tail[last]) << 16
    same &= (int64(1) << (past - start)) - (int64(1) << (first - start))
    while same:
        place = start + lowest(same)
        same &= same - 1  # takes the lowest bit away
        if tokens[place + 1] == END:
            continue
        found = where(place, places, int64(0), count)
        while found >= 0 and kinds[found] == CONTEXT:  # the same number, but a position of another log
            found = where(place, places, found + 1, count)
        distance = abs(place - anchor)
        kind = AT_ANCHOR if distance == 0 else NEAR_ANCHOR if distance <= 2 else AROUND_ANCHOR
        if found < 0:
            if count == CANDIDATES or turns[log.owner[place // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
                continue
            places[count], turn.matches[count], kinds[count] = place, agreement(place, tail, last, log), kind
            count += 1
        elif kinds[found] < AT_ANCHOR or kinds[found] > kind:
            kinds[found] = kind  # an anchor says more than whose turn it is, the nearest of several the most
    return count


@inlined
def _unmatched(anchor: int, age: int, count: int, turn: Any, log: TokenLog, turns: TurnKeys) -> int:
    """Add ``anchor`` and the places beside it where the last token differs; returns the places in use."""
    tokens, token = log.tokens, turn.tail[turn.last]
    for beside in range(len(_BESIDE)):
        place = anchor + _BESIDE[beside]
        if place < 1 or place >= len(tokens) - 1 or tokens[place] < 0 or tokens[place] == token:
            continue
        if turns[log.owner[place // GRANULE], ENV_KEY] != turn.keys[ENV_KEY]:
            continue
        # no agreement to speak of: instead of it stands the column of ``LENGTHS``
        turn.places[count], turn.matches[count], turn.kinds[count] = place, min(age - 1, 7) + 8 * beside, UNMATCHED
        count += 1
    return count
