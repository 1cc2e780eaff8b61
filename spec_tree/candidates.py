"""The places in the log that a turn may go on like.

Places are looked up newest first: in the same exact state by the last three
tokens and by the last one, in the same task, in the same environment, in the
turn's own context, and around the anchors, where earlier turns of the state
were alike before they went another way for a while. Each comes with how it
was found (a kind) and how many tokens before it agree.

Invariant: at a place of a kind other than ``UNMATCHED`` the last token agrees,
and the turn that owns it is still kept and has the key that its kind says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core.types import int64
from numpy.typing import NDArray

from turntree.spec_tree.indexing import context_head, head_of, mix
from turntree.spec_tree.layout import BACK, CANDIDATES, END, GRANULE, JUMP, MATCH, ContextLog, TokenLog, TurnKeys

EXACT, TASK, ENV, UNMATCHED, CONTEXT, NEAR, TOOLS, FOLLOWER = 0, 1, 2, 3, 4, 5, 8, 9
"""Kinds. ``NEAR`` to ``NEAR + 2``: in the same state and 0, up to 2, or more tokens from an anchor.
``FOLLOWER`` is no place: what came after the last token before, see ``growth``."""
_WALK = 16
"""Links that are followed of one kind."""
_ENOUGH = 16
"""Places of the state that make wider kinds needless."""
_WINDOW = 10
"""Distance from an anchor up to which a token is looked for."""
_CONTEXT_WALK = 8


@njit(inline="always")  # type: ignore[untyped-decorator]
def length_class(length: int) -> int:
    """Class of an agreement of ``length`` tokens: 0 to 17."""
    if length <= 12:
        return length
    if length <= 24:
        return 13 if length <= 16 else 14
    if length <= 48:
        return 15 if length <= 32 else 16
    return 17


@njit(inline="always")  # type: ignore[untyped-decorator]
def step_on(place: int, log: TokenLog) -> int:
    """The position after ``place`` in its turn."""
    after = place + 1
    if log.tokens[after] == JUMP:
        after = int64(log.exact1[after]) + 1
        if after < 1 or after >= len(log.tokens):  # a writer is at it
            after = place
    return after


@njit(inline="always")  # type: ignore[untyped-decorator]
def _older(newest: int, place: int, age: int, log: TokenLog) -> int:
    """How much older than ``newest`` a place is; -1 where a walk that has got to ``age`` is over.

    Turns that were live together link to each other out of order, but not over a quarter of the ring; what is
    newer than that has been written where an older place was.
    """
    if place < 0:
        return -1
    since, spread = newest - place, len(log.tokens) // 4
    if since < -spread:
        since += len(log.tokens)
    return max(since, age) if since + spread >= age else -1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def agreement(place: int, tail: NDArray[np.int32], last: int, log: TokenLog) -> int:
    """How many tokens up to ``place`` equal those up to ``tail[last]``; ``MATCH`` from the beginning of the turn on."""
    tokens = log.tokens
    length = 0
    while length < MATCH:
        if place < 0:
            return length
        token = tokens[place]
        if token == BACK:
            place = int64(log.exact1[place])
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def find_places(turn: Any, log: TokenLog, turns: TurnKeys, contexts: ContextLog) -> None:
    """Fill the places of ``turn``, a ``LIVE_TURN``, with their agreement and kinds."""
    keys, tail, last, context = turn.keys, turn.tail, turn.last, turn.context
    places, matches, kinds = turn.places, turn.matches, turn.kinds
    tokens, owner = log.tokens, log.owner
    exact, tools, task, env = keys[0], keys[1], keys[2], keys[3]
    token = tail[last]
    one = tail[last - 1] if token >= 0 else np.int32(-9)
    narrow = mix(exact, token)
    count = 0
    if one >= 0:
        place, walked = int64(log.exact3_heads[head_of(mix(mix(narrow, one), tail[last - 2]), log.exact3_heads)]), 0
        newest, age = place, int64(0)
        while place >= 0 and age >= 0 and walked < _WALK:
            walked += 1
            if tokens[place] == token and tokens[place + 1] != END and turns.exact[owner[place // GRANULE]] == exact:
                length = agreement(place, tail, last, log)
                if length >= 3:
                    places[count], matches[count], kinds[count] = place, length, EXACT
                    count += 1
            place = int64(log.exact3[place])
            age = _older(newest, place, age, log)
    longer = count
    place, walked = int64(log.exact1_heads[head_of(narrow, log.exact1_heads)]), 0
    newest, age = place, int64(0)
    while place >= 0 and age >= 0 and walked < _WALK:
        walked += 1
        if tokens[place] == token and tokens[place + 1] != END and turns.exact[owner[place // GRANULE]] == exact:
            length = agreement(place, tail, last, log)
            known = False
            if length > 2:
                for c in range(longer):
                    known = known or places[c] == place
            if not known:
                places[count], matches[count], kinds[count] = place, length, EXACT
                count += 1
        place = int64(log.exact1[place])
        age = _older(newest, place, age, log)
    if count < _ENOUGH and task != exact:
        key = mix(mix(task, token), one) if token >= 0 else mix(tools, token)
        place, walked = int64(log.task2_heads[head_of(key, log.task2_heads)]), 0
        state = count
        newest, age = place, int64(0)
        while place >= 0 and age >= 0 and walked < _WALK:
            walked += 1
            slot = owner[place // GRANULE]
            if tokens[place] == token and tokens[place + 1] != END and turns.task[slot] == task:
                length = agreement(place, tail, last, log)
                known = length < 2
                if turns.exact[slot] == exact:
                    for c in range(state):
                        known = known or places[c] == place
                if not known:
                    kind = TASK
                    if turns.exact[slot] == exact:
                        kind = EXACT
                    elif turns.tools[slot] == tools:
                        kind = TOOLS
                    places[count], matches[count], kinds[count] = place, length, kind
                    count += 1
            place = int64(log.task2[place])
            age = _older(newest, place, age, log)
    if count < _ENOUGH:
        key = mix(env, token)
        if token >= 0:
            key = mix(key, one)
        place, walked = int64(log.env2_heads[head_of(key, log.env2_heads)]), 0
        nearer = count
        newest, age = place, int64(0)
        while place >= 0 and age >= 0 and walked < _WALK:
            walked += 1
            if tokens[place] == token and tokens[place + 1] != END and turns.env[owner[place // GRANULE]] == env:
                length = agreement(place, tail, last, log)
                known = length < 2
                for c in range(nearer):
                    known = known or places[c] == place
                if not known:
                    places[count], matches[count], kinds[count] = place, length, ENV
                    count += 1
            place = int64(log.env2[place])
            age = _older(newest, place, age, log)
    if one >= 0:
        place = int64(contexts.heads[context_head(context[0], token, one, contexts)])
        walked = 0
        while context[0] < place < context[1] - 1 and walked < _CONTEXT_WALK:
            walked += 1
            if contexts.tokens[place] == token and contexts.tokens[place - 1] == one:
                length = 2
                while length < MATCH and place - length >= context[0] and last >= length:
                    if contexts.tokens[place - length] != tail[last - length]:
                        break
                    length += 1
                places[count], matches[count], kinds[count] = place, length, CONTEXT
                count += 1
            place = int64(contexts.link[place])
    turn.place_count = count
    _near_anchors(turn, log, turns)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _near_anchors(turn: Any, log: TokenLog, turns: TurnKeys) -> None:
    """Add the places around anchors where the last token agrees, and the anchors themselves."""
    tail, last = turn.tail, turn.last
    places, matches, kinds, count = turn.places, turn.matches, turn.kinds, turn.place_count
    tokens, env = log.tokens, turn.keys[3]
    token = tail[last]
    for i in range(turn.anchor_count):
        anchor, age = int64(turn.anchors[i]), turn.ages[i]
        if turns.env[log.owner[anchor // GRANULE]] != env:
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
                    if count == CANDIDATES or turns.env[log.owner[place // GRANULE]] != env:
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
                if turns.env[log.owner[place // GRANULE]] != env:
                    continue
                places[count], matches[count], kinds[count] = place, min(age - 1, 7) + 8 * shift, UNMATCHED
                count += 1
    turn.place_count = count
