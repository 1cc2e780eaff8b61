"""The flat arrays behind the store, and what their entries mean.

All state that a kernel reads or writes lies in these arrays, so that threads
may read while one writes. Nothing here knows how they are used.

A token log holds turns, one token a position. A turn begins with ``START``, and
``END`` stands after its last token. It may lie in several pieces: where one is
full stands ``JUMP``, and the next one begins with ``BACK``; their links (row
``EXACT1``) say where the other piece is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

START, END, JUMP, BACK = -1, -2, -3, -4
"""Marks in a token log; tokens are never negative."""
GRANULE = 16
"""Positions of the log that always belong to one turn."""
TAIL = 256
"""Tokens that are remembered of the end of a live turn; the last 64 always are."""
MATCH = 64
"""Agreement before a position is counted up to here; a turn that agrees from ``START`` on counts as much."""
CANDIDATES = 160
"""Places in the log that one draft may follow."""
NODES = 256
"""Nodes that one draft may weigh, those that are left out in the end included."""
ANCHORS = 12
"""Places kept of each live turn where earlier turns last agreed with it."""
FEW = 8
"""Numbers of votes are distinguished up to here."""
FOLLOWERS = 8
"""Tokens that are remembered to have followed one."""
FOLLOWED = 1 << 15
"""Tokens of which that is remembered, by hash."""
HASHED = 8192
"""Entries of a table of weights that is looked up by hash."""
TABLES = 4
"""Tables of such weights; see ``weighing``."""
INPUTS, HIDDEN = 16, 16
"""Shape of the network that weighs a node; see ``weighing``."""

# Kinds: how a place was found. They are rows of the fitted and the saved weights, so none may change its number.
EXACT = 0
"""In a turn at the same exact state."""
TASK = 1
"""In a turn of the same task, after other tool calls."""
ENV = 2
"""In a turn of the same environment, with another task."""
UNMATCHED = 3
"""At an anchor or beside it, where the last token does not agree."""
CONTEXT = 4
"""In the turn's own context."""
AT_ANCHOR = 5
"""At an anchor where, as in the next two kinds, the last token agrees."""
NEAR_ANCHOR = 6
"""1 or 2 tokens from an anchor."""
AROUND_ANCHOR = 7
"""3 to ``candidates.WINDOW`` tokens from an anchor."""
TOOLS = 8
"""In a turn of the same task, after the same tool calls."""
FOLLOWER = 9
"""No place: a token that followed the last one before, in the same environment."""
KINDS = 10
"""How many of them."""
LENGTHS = 24
"""Columns of the weights by kind. Of a place: the class of its agreement, see ``candidates.length_class``. Of
``UNMATCHED``: 8 times where beside the anchor (0 at it, 1 before, 2 after), plus the anchor's age up to 7. Of
``FOLLOWER``: twice the number of votes up to ``FEW``, plus 1 below the root."""

LIVE_TURN = np.dtype(
    [
        ("keys", np.uint64, 4),
        ("tail", np.int32, TAIL),
        ("last", np.int32),
        ("length", np.int32),
        ("turn", np.int32),
        ("position", np.int64),
        ("limit", np.int64),
        ("context", np.int64, 2),
        ("anchors", np.int32, ANCHORS),
        ("ages", np.int32, ANCHORS),
        ("anchor_count", np.int32),
        ("places", np.int32, CANDIDATES),
        ("matches", np.int32, CANDIDATES),
        ("kinds", np.int32, CANDIDATES),
        ("place_count", np.int32),
        ("node_token", np.int32, NODES),
        ("node_parent", np.int32, NODES),
        ("node_order", np.int32, NODES),
        ("node_votes", np.float32, NODES),
        ("node_probability", np.float32, NODES),
        ("node_hashes", np.int16, (NODES, TABLES)),
        ("node_count", np.int32),
        ("drafted", np.int32),
    ],
    align=True,
)
"""A live turn; ``LiveTurns`` explains the fields."""

EXACT1, TASK2, ENV2, ENV4 = range(4)
"""Kinds of links, each to the newest earlier position with the same key: exact state and last token; task and last two
tokens; environment and last two; environment and last four, this from the second token of a turn on."""
LINKS = 4
"""How many of them."""
EXACT_KEY, TOOLS_KEY, TASK_KEY, ENV_KEY = range(4)
"""Columns of a turn's keys, see ``DialogueState.backoff_states``."""


class TokenLog(NamedTuple):
    """What was sampled, and where the same was sampled before."""

    tokens: NDArray[np.int32]
    """Tokens and marks, shape (capacity,)."""
    links: NDArray[np.int32]
    """Newest earlier position with the same key, shape (LINKS, capacity); in row ``EXACT1`` also where a ``JUMP`` or
    ``BACK`` leads."""
    heads: NDArray[np.int32]
    """Newest position by hash of the key, shape (LINKS, a power of two)."""
    owner: NDArray[np.int32]
    """Slot of the turn that a granule belongs to, 0 for none, shape (capacity / GRANULE,)."""
    followers: NDArray[np.int32]
    """The last tokens after a token in an environment, a ring, -1 where there are fewer, shape (FOLLOWED,
    FOLLOWERS)."""
    followed: NDArray[np.int32]
    """How often it was followed, shape (FOLLOWED,)."""
    votes: NDArray[np.int64]
    """How often the token after a place in a turn was looked at once the next one was sampled, and how often they were
    equal, by slot, shape (slots, 2). What stands at slot 0, and where no turn is, means nothing."""


TurnKeys = NDArray[np.uint64]
"""The keys of the turns in the log by slot, shape (slots, 4); zero at slot 0 and where no turn is."""


class ContextLog(NamedTuple):
    """The prompts of live turns, for their own drafts alone."""

    tokens: NDArray[np.int32]
    """Tokens, shape (capacity,)."""
    link: NDArray[np.int32]
    """Newest earlier position in the same context with the same last two tokens, shape (capacity,)."""
    heads: NDArray[np.int32]
    """Newest position by hash, shape (a power of two,)."""


class DraftSources(NamedTuple):
    """What a draft is copied from."""

    log: TokenLog
    """The turns of the store."""
    turns: TurnKeys
    """Their keys."""
    contexts: ContextLog
    """The prompts of the live turns."""


class DraftLimits(NamedTuple):
    """What the caller of a draft allows, for every row."""

    budget: int
    """Nodes of a row at most."""
    floor: float
    """Probability that the whole path to a node must have."""
    chain: bool
    """Only the best child of a node."""
    ends: NDArray[np.int32]
    """Tokens after which nothing is drafted."""


class DraftNodes(NamedTuple):
    """The nodes of drafts, row after row, parents before their children; every array has shape (nodes,)."""

    tokens: NDArray[np.int32]
    """Token ids."""
    parents: NDArray[np.int32]
    """Index in the row's draft, -1 for children of the root."""
    depths: NDArray[np.int32]
    """Tokens from the root on, from 1."""
    paths: NDArray[np.float32]
    """Probability of the whole path."""


WEIGHTS = np.dtype(
    [
        ("odds", np.float32, (KINDS, LENGTHS)),  # weight of a vote by kind and column, see ``LENGTHS``
        ("tried", np.float64, (KINDS, LENGTHS, 2)),  # votes, and how many of them were right; older ones count less
        ("hashed", np.float32, (TABLES, HASHED)),  # log-odds by hashed properties of a node, learnt online
        ("scale", np.float32),  # factor of the log-odds of a node's votes, learnt online
        ("inner", np.float32, (INPUTS, HIDDEN)),  # first layer of the network
        ("bias", np.float32, HIDDEN),  # of its hidden units
        ("outer", np.float32, HIDDEN),  # second layer of the network
        ("updates", np.int64),  # verdicts learnt from
    ],
    align=True,
)
"""What is learnt of how drafts come true, one record for a forest."""
Weights = NDArray[np.void]
"""Of type ``WEIGHTS``, shape (1,)."""


class LiveTurns(NamedTuple):
    """The turns that have begun and not ended, by handle slot; the first axis of every array.

    All but the first are views of its fields.
    """

    records: NDArray[np.void]
    """What the kernels take, of type ``LIVE_TURN``."""

    keys: NDArray[np.uint64]
    """By ``EXACT_KEY`` to ``ENV_KEY``, shape (slots, 4)."""
    tail: NDArray[np.int32]
    """The last tokens, shape (slots, TAIL)."""
    last: NDArray[np.int32]
    """Where the newest token is in ``tail``."""
    length: NDArray[np.int32]
    """Tokens sampled so far."""
    turn: NDArray[np.int32]
    """Slot in ``TurnKeys``; 0 where the turn is not in the log."""
    position: NDArray[np.int64]
    """Where the newest token is in the log."""
    limit: NDArray[np.int64]
    """End of the piece of the log that the turn writes into."""
    context: NDArray[np.int64]
    """Begin and end of the context, shape (slots, 2)."""
    anchors: NDArray[np.int32]
    """Places in the log where earlier turns last agreed, moved on with the turn since, shape (slots, ANCHORS)."""
    ages: NDArray[np.int32]
    """Tokens since an anchor was last confirmed, shape (slots, ANCHORS)."""
    anchor_count: NDArray[np.int32]
    """Anchors in use."""
    places: NDArray[np.int32]
    """Places that the last draft followed, shape (slots, CANDIDATES)."""
    matches: NDArray[np.int32]
    """Tokens that agree up to there; the column of ``LENGTHS`` for ``UNMATCHED``; shape (slots, CANDIDATES)."""
    kinds: NDArray[np.int32]
    """How they were found, ``EXACT`` to ``TOOLS``, shape (slots, CANDIDATES)."""
    place_count: NDArray[np.int32]
    """Places in use."""
    node_token: NDArray[np.int32]
    """Nodes that the last draft weighed, the root first, shape (slots, NODES)."""
    node_parent: NDArray[np.int32]
    """Their parents, shape (slots, NODES)."""
    node_order: NDArray[np.int32]
    """Their index in the draft; -1 where they were left out, shape (slots, NODES)."""
    node_votes: NDArray[np.float32]
    """Log-odds of their votes, shape (slots, NODES)."""
    node_probability: NDArray[np.float32]
    """Estimated probability given the parent, shape (slots, NODES)."""
    node_hashes: NDArray[np.int16]
    """Entries of the hashed tables; -1 in column 1 where only table 0 counts; shape (slots, NODES, TABLES)."""
    node_count: NDArray[np.int32]
    """Nodes in use."""
    drafted: NDArray[np.int32]
    """Nodes of the last draft that were handed out."""


def token_log(capacity: int, old: TokenLog | None = None) -> TokenLog:
    """An empty log of ``capacity`` positions, a multiple of ``GRANULE``, with the followers and votes of ``old``.

    Links are only read where they were written, so they are left as they come, and take no memory before.
    """
    size = 1
    while size * 8 < capacity:
        size *= 2
    log = TokenLog(
        tokens=np.zeros((capacity,), np.int32),
        links=np.zeros((LINKS, capacity), np.int32),
        heads=np.zeros((LINKS, size), np.int32),
        owner=np.zeros((capacity // GRANULE,), np.int32),
        followers=np.zeros((FOLLOWED, FOLLOWERS), np.int32) if old is None else old.followers,
        followed=np.zeros((FOLLOWED,), np.int32) if old is None else old.followed,
        votes=np.zeros((1, 2), np.int64) if old is None else old.votes,
    )
    log.heads[:] = -1
    if old is None:
        log.followers[:] = -1
    log.tokens[:] = END
    return log


def turn_keys(slots: int) -> TurnKeys:
    """Keys of ``slots`` turns, none kept."""
    return np.zeros((slots, 4), np.uint64)


def context_log(capacity: int) -> ContextLog:
    """An empty log of ``capacity`` positions, a power of two."""
    log = ContextLog(*(np.zeros((capacity,), np.int32) for _ in ContextLog._fields))
    log.link[:] = -1
    log.heads[:] = -1
    return log


def live_turns(slots: int) -> LiveTurns:
    """Room for ``slots`` live turns."""
    records = np.zeros((slots,), LIVE_TURN)
    return LiveTurns(records, *(records[name] for name in LiveTurns._fields[1:]))
