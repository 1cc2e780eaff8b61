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

from turntree.spec_tree.compiled import inlined, int64, part
from turntree.spec_tree.indexing import context_head, head_of, lengthened, mix
from turntree.spec_tree.layout import BACK, CANDIDATES, END, GRANULE, JUMP, MATCH, ContextLog, TokenLog, TurnKeys

EXACT, TASK, ENV, UNMATCHED, CONTEXT, NEAR, TOOLS, FOLLOWER = 0, 1, 2, 3, 4, 5, 8, 9
"""Kinds. ``NEAR`` to ``NEAR + 2``: in the same state and 0, up to 2, or more tokens from an anchor.
``FOLLOWER`` is no place: what came after the last token before, see ``growth``."""
_WALK = np.int64(16)
"""Links that are followed of one kind."""
_WALK_MORE = np.int64(8)
"""The same for a node below the root."""
_ENOUGH = 24
"""Places of the state that make wider kinds needless."""
_WINDOW = 10
"""Distance from an anchor up to which a token is looked for."""
_CONTEXT_WALK = 8


@inlined
def length_class(length: int) -> int:
    """Class of an agreement of ``length`` tokens: 0 to 17."""
    if length <= 12:
        return length
    if length <= 24:
        return 13 if length <= 16 else 14
    if length <= 48:
        return 15 if length <= 32 else 16
    return 17


@inlined
def step_on(place: int, kind: int, context_end: int, log: TokenLog, contexts: ContextLog) -> tuple[int, np.int32]:
    """The position after ``place`` in its turn, or in the context for a place of that kind, and the token there.

    The token is negative where there is none, or where a writer is at it.
    """
    place = place + 1
    token = np.int32(-1)
    if kind == CONTEXT:
        if place < context_end:
            token = contexts.tokens[place]
    else:
        token = log.tokens[place]
        if token == JUMP:
            place = int64(log.exact1[place]) + 1
            token = log.tokens[place] if 0 < place < len(log.tokens) else np.int32(-1)
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
def agreement(
    place: int, tail: NDArray[np.int32], last: int, tokens: NDArray[np.int32], links: NDArray[np.int32]
) -> int:
    """How many tokens up to ``place`` equal those up to ``tail[last]``; ``MATCH`` from the beginning of the turn on.

    ``links`` say where a ``BACK`` leads.
    """
    length = 0
    while length < MATCH:
        if place < 0:
            return length
        token = tokens[place]
        if token == BACK:
            place = int64(links[place])
            if place < 0:
                return length
            token = tokens[place]
        if token != tail[last - length]:
            return length
        if token < 0:
            return MATCH
        length += 1
        place -= 1
    return MATCH


@part
def find_places(turn: Any, log: TokenLog, turns: TurnKeys, contexts: ContextLog, work: Any) -> None:
    """Fill the places of ``turn``, a ``LIVE_TURN``, with their agreement and kinds; ``work`` is a ``SCRATCH``."""
    exact, tools, task, env = turn.keys[0], turn.keys[1], turn.keys[2], turn.keys[3]
    tail, last = turn.tail, int64(turn.last)
    token = tail[last]
    narrow, middle, wide = mix(exact, token), mix(tools, token), mix(env, token)
    count, none = int64(0), int64(-1)
    if token >= 0:
        one = tail[last - 1]
        middle, wide = mix(mix(task, token), one), mix(wide, one)
        if one >= 0:
            two = tail[last - 2]
            three = tail[last - 3] if two >= 0 else np.int32(-1)
            head = log.env4_heads[head_of(lengthened(wide, two, three), log.env4_heads)]
            count = walk(
                turn, last, none, count, count, head, log.env4, turns.env, env, int64(3), _WALK, log, turns, work
            )
    head = log.exact1_heads[head_of(narrow, log.exact1_heads)]
    since = int64(0)
    count = walk(
        turn, last, none, since, count, head, log.exact1, turns.exact, exact, int64(1), _WALK, log, turns, work
    )
    if count < _ENOUGH and task != exact:
        head = log.task2_heads[head_of(middle, log.task2_heads)]
        count = walk(
            turn, last, none, since, count, head, log.task2, turns.task, task, int64(2), _WALK, log, turns, work
        )
    if count < _ENOUGH:
        head = log.env2_heads[head_of(wide, log.env2_heads)]
        count = walk(turn, last, none, since, count, head, log.env2, turns.env, env, int64(2), _WALK, log, turns, work)
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
    exact, first = turn.keys[0], int64(work.first_place[node])
    head = log.exact1_heads[head_of(mix(exact, tail[last]), log.exact1_heads)]
    more: int = walk(
        turn, last, first, count, count, head, log.exact1, turns.exact, exact, int64(1), _WALK_MORE, log, turns, work
    )
    return more


@part
def walk(
    turn: Any,
    last: int,
    followed: int,
    since: int,
    count: int,
    place: int,
    links: NDArray[np.int32],
    owned: NDArray[np.uint64],
    key: int,
    least: int,
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
        place: The newest position.
        links: From a position to an older one.
        owned: The keys of turns.
        key: Key of the turns that are wanted.
        least: Tokens that must agree.
        most: Links that are followed.
        log: Of the store.
        turns: Of the store.
        work: A ``SCRATCH``.

    Returns:
        Places in use.
    """
    tail, places, matches, kinds = turn.tail, turn.places, turn.matches, turn.kinds
    tokens, owner, back = log.tokens, log.owner, log.exact1
    exact, tools, task, level = turn.keys[0], turn.keys[1], turn.keys[2], last - turn.last
    token, walked, newest, age = tail[last], 0, int64(place), int64(0)
    place, known = newest, count
    while place >= 0 and age >= 0 and walked < most and count < CANDIDATES:
        walked += 1
        slot = owner[place // GRANULE]
        if tokens[place] == token and tokens[place + 1] != END and owned[slot] == key:
            new = True
            for c in range(since, known):
                new = new and places[c] != place
            c = followed
            while c >= 0:
                new = new and work.at[c] != place
                c = int64(work.following[c])
            length = agreement(place, tail, last, tokens, back) if new else 0
            if length >= least:
                kind = ENV
                if turns.exact[slot] == exact:
                    kind = EXACT
                elif turns.tools[slot] == tools:
                    kind = TOOLS
                elif turns.task[slot] == task:
                    kind = TASK
                places[count], matches[count], kinds[count] = place, length - level, kind
                count += 1
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
    tail, last, anchors, ages = turn.tail, turn.last, turn.anchors, turn.ages
    places, matches, kinds, count = turn.places, turn.matches, turn.kinds, turn.place_count
    tokens, back, owner, env_of, env = log.tokens, log.exact1, log.owner, turns.env, turn.keys[3]
    token = tail[last]
    for i in range(turn.anchor_count):
        anchor, age = int64(anchors[i]), ages[i]
        if env_of[owner[anchor // GRANULE]] != env:
            continue
        if token >= 0:
            for place in range(max(anchor - _WINDOW, 1), min(anchor + _WINDOW, len(tokens) - 2) + 1):
                if tokens[place] != token or tokens[place + 1] == END:
                    continue
                found = -1
                for c in range(count):
                    if places[c] == place and kinds[c] != CONTEXT:
                        found = c
                        break
                distance = abs(place - anchor)
                kind = NEAR + (0 if distance == 0 else 1 if distance <= 2 else 2)
                if found < 0:
                    if count == CANDIDATES or env_of[owner[place // GRANULE]] != env:
                        continue
                    found = count
                    count += 1
                    places[found], matches[found], kinds[found] = (
                        place,
                        agreement(place, tail, last, tokens, back),
                        kind,
                    )
                elif kinds[found] < NEAR or kinds[found] > kind:
                    kinds[found] = kind
        if age > 0 and count < CANDIDATES - 3:
            for shift in range(3):
                place = anchor + (0 if shift == 0 else -1 if shift == 1 else 1)
                if place < 1 or place >= len(tokens) - 1 or tokens[place] < 0 or tokens[place] == token:
                    continue
                if env_of[owner[place // GRANULE]] != env:
                    continue
                places[count], matches[count], kinds[count] = place, min(age - 1, 7) + 8 * shift, UNMATCHED
                count += 1
    turn.place_count = count
