"""The places in the log that a turn may go on like.

Places are looked up newest first: by the last four tokens anywhere in the
environment, by the last one in the same exact state, by the last two in the same
task and environment, in the turn's own context, and around the anchors, where
earlier turns of the state were alike before they went another way for a while.
Each comes with whose it is (a kind) and how many tokens before it agree. Below the root of
a draft, where few of these places are left, more are looked up in the same state.

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
    BACK,
    CANDIDATES,
    END,
    ENV2,
    ENV4,
    ENV_KEY,
    EXACT1,
    EXACT_KEY,
    GRANULE,
    JUMP,
    MATCH,
    TASK2,
    TASK_KEY,
    TOOLS_KEY,
    ContextLog,
    TokenLog,
    TurnKeys,
)

EXACT, TASK, ENV, UNMATCHED, CONTEXT, NEAR, TOOLS, FOLLOWER = 0, 1, 2, 3, 4, 5, 8, 9
"""Kinds. ``NEAR`` to ``NEAR + 2``: in the same state and 0, up to 2, or more tokens from an anchor.
``FOLLOWER`` is no place: what came after the last token before, see ``growth``."""
WALK = np.int64(16)
"""Links that are followed of one kind."""
_WALK_MORE = np.int64(8)
"""The same for a node below the root."""
_OWNED = np.array([EXACT_KEY, TASK_KEY, ENV_KEY, ENV_KEY])
"""By kind of links, the key that the owner of a place must share."""
_LEAST_OF = np.array([1, 2, 2, 3])
"""By kind of links, the tokens that must agree."""
_ENOUGH = 24
"""Places of the state that make wider kinds needless."""
WINDOW = 10
"""Distance from an anchor up to which a token is looked for."""
_CONTEXT_WALK = 8


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
    if since < -spread:
        since += size
    return max(since, age) if since + spread >= age else -1


@part
def agreement(place: int, tail: NDArray[np.int32], last: int, log: TokenLog) -> int:
    """How many tokens up to ``place`` equal those up to ``tail[last]``; ``MATCH`` from the beginning of the turn on."""
    tokens = log.tokens
    length: int = int64(0)
    while length < MATCH:
        if place >= 8 and last - length >= 8:
            alike = alike8(tokens, place, tail, last - length)
            length += alike
            place -= alike
            if alike == 8:
                continue
        if place < 0:
            break
        token = tokens[place]
        if token == BACK:
            place = int64(log.links[EXACT1, place])
            if place < 0:
                break
            token = tokens[place]
        if token != tail[last - length]:
            break
        if token < 0:
            return MATCH
        length += 1
        place -= 1
    return length if length < MATCH else MATCH


@part
def find_places(turn: Any, row: int, log: TokenLog, turns: TurnKeys, contexts: ContextLog, work: Any) -> None:
    """Fill the places of ``turn``, a ``LIVE_TURN``, with their agreement and kinds.

    Args:
        turn: The turn.
        row: Of ``newest_links`` in ``work``: the newest place by kind of links, -1 for none.
        log: Of the store.
        turns: Of the store.
        contexts: Of the live turns.
        work: A ``SCRATCH``.
    """
    last, none, count, since = int64(turn.last), int64(-1), int64(0), int64(0)
    newest = work.newest_links[row]
    count = walk(turn, last, none, count, count, int64(ENV4), newest[ENV4], WALK, log, turns, work)
    count = walk(turn, last, none, since, count, int64(EXACT1), newest[EXACT1], WALK, log, turns, work)
    if count < _ENOUGH and turn.keys[TASK_KEY] != turn.keys[EXACT_KEY]:
        count = walk(turn, last, none, since, count, int64(TASK2), newest[TASK2], WALK, log, turns, work)
    if count < _ENOUGH:
        count = walk(turn, last, none, since, count, int64(ENV2), newest[ENV2], WALK, log, turns, work)
    turn.place_count = count
    _in_context(turn, contexts)
    _near_anchors(turn, log, turns)


@part
def find_more_places(turn: Any, node: int, level: int, count: int, log: TokenLog, turns: TurnKeys, work: Any) -> int:
    """Look up in the same state where ``node``, ``level`` tokens down the tree, may go on like.

    The path to the node is written behind the turn's tail, where there must be room for it.

    Returns:
        The places in use. Those from ``count`` on belong to the node; their agreement is that of the node less its
        level, so it may be negative.
    """
    tail, last, z = turn.tail, int64(turn.last) + level, int64(node)
    for i in range(level):
        tail[last - i] = turn.node_token[z]
        z = int64(turn.node_parent[z])
    first = int64(work.first_place[node])
    heads = log.heads[EXACT1]
    place = int64(heads[head_of(mix(turn.keys[EXACT_KEY], tail[last]), heads)])
    more: int = walk(turn, last, first, count, count, int64(EXACT1), place, _WALK_MORE, log, turns, work)
    return more


@part
def walk(
    turn: Any,
    last: int,
    followed: int,
    since: int,
    count: int,
    link: int,
    newest: int,
    most: int,
    log: TokenLog,
    turns: TurnKeys,
    work: Any,
) -> int:
    """Add places that a turn may go on like after ``tail[last]``, found along one kind of links.

    Args:
        turn: A ``LIVE_TURN``.
        last: Where the newest token is in its tail.
        followed: First of the places that are followed here already, by the lists in ``work``; -1 for none.
        since: Places from here to ``count`` are not found again.
        count: Places in use.
        link: The kind of links, a row of ``TokenLog.links``.
        newest: The newest position.
        most: Links that are followed.
        log: Of the store.
        turns: Of the store.
        work: A ``SCRATCH``.

    Returns:
        Places in use.
    """
    tail, places, matches, kinds = turn.tail, turn.places, turn.matches, turn.kinds
    tokens, links, owner = log.tokens, log.links[link], log.owner
    keys, column, least = turn.keys, _OWNED[link], _LEAST_OF[link]
    token, level, walked, age = tail[last], last - turn.last, 0, int64(0)
    place, known = int64(newest), count
    while place >= 0 and age >= 0 and walked < most and count < CANDIDATES:
        walked += 1
        place = index(place)
        if tokens[place] == token and tokens[place + 1] != END:
            owned = turns[index(owner[index(place // GRANULE)])]
            new = owned[column] == keys[column] and where(place, places, since, known) < 0
            c = followed
            while new and c >= 0:
                new = work.at[c] != place
                c = int64(work.following[c])
            length = agreement(place, tail, last, log) if new else int64(0)
            if length >= least:
                kind = ENV
                if owned[EXACT_KEY] == keys[EXACT_KEY]:
                    kind = EXACT
                elif owned[TOOLS_KEY] == keys[TOOLS_KEY]:
                    kind = TOOLS
                elif owned[TASK_KEY] == keys[TASK_KEY]:
                    kind = TASK
                places[count], matches[count], kinds[count] = place, length - level, kind
                count = index(count + 1)
        place = int64(links[place])
        age = _older(newest, place, age, len(tokens))
    return count


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
    while start < place < stop - 1 and walked < _CONTEXT_WALK:
        walked += 1
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
    tail, last, anchors, ages = turn.tail, int64(turn.last), turn.anchors, turn.ages
    places, matches, kinds, count = turn.places, turn.matches, turn.kinds, int64(turn.place_count)
    tokens, owner, env = log.tokens, log.owner, turn.keys[ENV_KEY]
    token = tail[last]
    for i in range(turn.anchor_count):
        anchor, age = int64(anchors[i]), ages[i]
        if turns[owner[anchor // GRANULE], ENV_KEY] != env:
            continue
        if token >= 0:
            start = max(min(anchor - WINDOW, len(tokens) - 32), 0)
            first, past = max(anchor - WINDOW, 1), min(anchor + WINDOW, len(tokens) - 2) + 1
            same = equal16(tokens, start, token) | equal16(tokens, start + 16, token) << 16
            same &= (int64(1) << (past - start)) - (int64(1) << (first - start))
            while same:
                place = start + lowest(same)
                same &= same - 1
                if tokens[place + 1] == END:
                    continue
                found = where(place, places, int64(0), count)
                while found >= 0 and kinds[found] == CONTEXT:
                    found = where(place, places, found + 1, count)
                distance = abs(place - anchor)
                kind = NEAR + (0 if distance == 0 else 1 if distance <= 2 else 2)
                if found < 0:
                    if count == CANDIDATES or turns[owner[place // GRANULE], ENV_KEY] != env:
                        continue
                    found = count
                    count += 1
                    places[found], matches[found], kinds[found] = place, agreement(place, tail, last, log), kind
                elif kinds[found] < NEAR or kinds[found] > kind:
                    kinds[found] = kind
        if age > 0 and count < CANDIDATES - 3:
            for shift in range(3):
                place = anchor + (0 if shift == 0 else -1 if shift == 1 else 1)
                if place < 1 or place >= len(tokens) - 1 or tokens[place] < 0 or tokens[place] == token:
                    continue
                if turns[owner[place // GRANULE], ENV_KEY] != env:
                    continue
                places[count], matches[count], kinds[count] = place, min(age - 1, 7) + 8 * shift, UNMATCHED
                count += 1
    turn.place_count = count
