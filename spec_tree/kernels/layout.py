"""Layout of the flat arrays of the draft store.

All state of the kernels lies in these arrays, so that threads may read while one thread writes.

A token log is the buffer of stored turns, one token per position. A turn begins with ``START`` and ends with ``END``.
A turn may consist of several pieces: a full piece ends with ``JUMP``, and the next piece begins with ``BACK``. The
``EXACT1`` link of each of these two marks holds the position of the other mark.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

START, END, JUMP, BACK = -1, -2, -3, -4  #: marks in a token log; token ids are never negative
GRANULE = 16  #: the log is divided into blocks of this many positions; a block belongs to one turn
TAIL = 256  #: last tokens of a live turn that are kept; at least the last 64 always are
MATCH = 64  #: maximum length of an agreement; an agreement back to ``START`` counts as ``MATCH``
CANDIDATES = 160  #: maximum candidates (positions in stored turns to copy from) per draft
NODES = 256  #: maximum nodes (tokens of the tree) that one draft may weigh, proposed or not
ANCHORS = 12  #: anchors per live turn: positions where stored turns last agreed with the turn
FEW = 8  #: larger vote counts are treated as this count
FOLLOWERS = 8  #: followers (the last tokens seen after a token) kept per token
FOLLOWED = 1 << 15  #: rows of ``followers``, by hash
HASHED = 8192  #: entries of a hashed table of weights
TABLES = 4  #: hashed tables of weights, see ``weighing``
INPUTS, HIDDEN = 16, 16  #: shape of the network that weighs a node, see ``weighing``

# Kinds of candidates: how the position was found. Kinds are row numbers in saved weights, so never renumber them.
EXACT = 0  #: in a turn at the same exact state
TASK = 1  #: in a turn of the same task after different tool calls
ENV = 2  #: in a turn of the same environment but another task
UNMATCHED = 3  #: at or next to an anchor where the last token differs
CONTEXT = 4  #: in the turn's own context
AT_ANCHOR = 5  #: at an anchor, and the last token agrees (also for the next two kinds)
NEAR_ANCHOR = 6  #: 1 or 2 tokens from an anchor
AROUND_ANCHOR = 7  #: 3 to ``candidates.WINDOW`` tokens from an anchor
TOOLS = 8  #: in a turn of the same task, after the same tool calls
FOLLOWER = 9  #: not a candidate: a token that followed the previous token earlier in the same environment
KINDS = 10  #: number of kinds
#: number of columns of the weights per kind. The column is ``candidates.length_class`` of the agreement. Exceptions:
#: ``UNMATCHED``: the anchor's age up to 7, plus 8 times the index in ``_ANCHOR_OFFSETS``. ``FOLLOWER``: twice the
#: number of votes up to ``FEW``, plus 1 below the root.
LENGTHS = 24

#: one live turn; ``LiveTurns`` explains the fields
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
        ("candidates", np.int32, CANDIDATES),
        ("matches", np.int32, CANDIDATES),
        ("kinds", np.int32, CANDIDATES),
        ("candidate_count", np.int32),
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

#: kinds of links to the newest earlier position with an equal key. Keys: exact state and last token; task and last two
#: tokens; environment and last two tokens; environment and last four tokens (from a turn's second token on)
EXACT1, TASK2, ENV2, ENV4 = range(4)
LINKS = 4  #: number of link kinds
EXACT_KEY, TOOLS_KEY, TASK_KEY, ENV_KEY = range(4)  #: columns of a turn's keys, see ``DialogueState.backoff_states``


class TokenLog(NamedTuple):
    """Stored turns and their index."""

    tokens: NDArray[np.int32]  #: tokens and marks, shape (capacity,)
    #: newest earlier position with an equal key, shape (LINKS, capacity); row ``EXACT1`` also links a turn's pieces
    links: NDArray[np.int32]
    heads: NDArray[np.int32]  #: newest position by hash of the key, shape (LINKS, a power of two)
    owner: NDArray[np.int32]  #: slot of the turn that owns each block, 0 for none, shape (capacity / GRANULE,)
    followers: NDArray[np.int32]  #: ring buffer of the last followers, -1 if unused, shape (FOLLOWED, FOLLOWERS)
    followed: NDArray[np.int32]  #: tokens written to each ring; reset when a token is removed, shape (FOLLOWED,)
    #: per slot: tokens that candidates in the turn predicted, and how many predictions were right, shape (slots, 2);
    #: slot 0 and slots without a turn hold garbage
    votes: NDArray[np.int64]


TurnKeys = NDArray[np.uint64]  #: keys of the turns in the log, shape (slots, 4); zero at slot 0 and where no turn is


class ContextLog(NamedTuple):
    """Prompts of the live turns; a prompt serves only the drafts of its own turn."""

    tokens: NDArray[np.int32]  #: shape (capacity,)
    link: NDArray[np.int32]  #: newest earlier position in the context with the same last two tokens, shape (capacity,)
    heads: NDArray[np.int32]  #: newest position by hash, shape (a power of two,)


class DraftSources(NamedTuple):
    log: TokenLog  #: stored turns
    turns: TurnKeys  #: keys of the stored turns
    contexts: ContextLog  #: prompts of the live turns


class DraftLimits(NamedTuple):
    """Limits of a draft, the same for every row."""

    budget: int  #: maximum nodes per row
    floor: float  #: minimum probability of the path to a node
    chain: bool  #: draft a chain: only the best child of each node
    ends: NDArray[np.int32]  #: tokens after which nothing is drafted


class DraftNodes(NamedTuple):
    """Nodes of drafts, row after row, parents before their children; every array has shape (nodes,)."""

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]  #: index in the row's draft, -1 for children of the root
    depths: NDArray[np.int32]  #: tokens from the root on, from 1
    paths: NDArray[np.float32]  #: probability of the whole path


#: weights of the draft model, one record per forest
WEIGHTS = np.dtype(
    [
        ("odds", np.float32, (KINDS, LENGTHS)),  # weight of one vote by kind and column, see ``LENGTHS``
        ("tried", np.float64, (KINDS, LENGTHS, 2)),  # votes, and right votes; older votes count less
        ("hashed", np.float32, (TABLES, HASHED)),  # log-odds by hashed properties of a node, learned online
        ("scale", np.float32),  # factor of the log-odds of a node's votes, learned online
        ("inner", np.float32, (INPUTS, HIDDEN)),  # first layer of the network
        ("bias", np.float32, HIDDEN),  # of its hidden units
        ("outer", np.float32, HIDDEN),  # second layer of the network
        ("updates", np.int64),  # updates so far
    ],
    align=True,
)
Weights = NDArray[np.void]  #: of type ``WEIGHTS``, shape (1,)


class LiveTurns(NamedTuple):
    """Turns that have begun and not ended; the first axis of every array is the handle's slot."""

    records: NDArray[np.void]  #: ``LIVE_TURN`` records for the kernels; all other arrays are views of their fields

    keys: NDArray[np.uint64]  #: columns ``EXACT_KEY`` to ``ENV_KEY``, shape (slots, 4)
    tail: NDArray[np.int32]  #: last tokens, shape (slots, TAIL)
    last: NDArray[np.int32]  #: index of the newest token in ``tail``
    length: NDArray[np.int32]  #: tokens sampled so far
    turn: NDArray[np.int32]  #: slot in ``TurnKeys``, 0 if the turn is not stored in the log
    position: NDArray[np.int64]  #: position of the newest token in the log
    limit: NDArray[np.int64]  #: end of the piece of the log that the turn is writing
    context: NDArray[np.int64]  #: start and end of the context, shape (slots, 2)
    #: positions where stored turns last agreed, moved forward as the turn grows, shape (slots, ANCHORS)
    anchors: NDArray[np.int32]
    ages: NDArray[np.int32]  #: tokens since an anchor last agreed, shape (slots, ANCHORS)
    anchor_count: NDArray[np.int32]
    candidates: NDArray[np.int32]  #: positions that the last draft followed, shape (slots, CANDIDATES)
    #: number of equal tokens; for ``UNMATCHED`` a column, see ``LENGTHS``; shape (slots, CANDIDATES)
    matches: NDArray[np.int32]
    kinds: NDArray[np.int32]  #: ``EXACT`` to ``TOOLS``, shape (slots, CANDIDATES)
    candidate_count: NDArray[np.int32]
    node_token: NDArray[np.int32]  #: nodes that the last draft weighed, the root first, shape (slots, NODES)
    node_parent: NDArray[np.int32]  #: shape (slots, NODES)
    node_order: NDArray[np.int32]  #: index in the draft, -1 if not proposed, shape (slots, NODES)
    node_votes: NDArray[np.float32]  #: log-odds of the votes, shape (slots, NODES)
    node_probability: NDArray[np.float32]  #: estimated probability of the node given its parent, shape (slots, NODES)
    #: entries of the hashed tables; -1 in column 1 if only table 0 counts; shape (slots, NODES, TABLES)
    node_hashes: NDArray[np.int16]
    node_count: NDArray[np.int32]
    drafted: NDArray[np.int32]  #: nodes of the last draft that were proposed


def token_log(capacity: int, old: TokenLog | None = None) -> TokenLog:
    """Return an empty log of ``capacity`` positions (a multiple of ``GRANULE``) with the statistics of ``old``."""
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
    return np.zeros((slots, 4), np.uint64)


def context_log(capacity: int) -> ContextLog:
    """Return an empty log of ``capacity`` positions, a power of two."""
    log = ContextLog(*(np.zeros((capacity,), np.int32) for _ in ContextLog._fields))
    log.link[:] = -1
    log.heads[:] = -1
    return log


def live_turns(slots: int) -> LiveTurns:
    records = np.zeros((slots,), LIVE_TURN)
    return LiveTurns(records, *(records[name] for name in LiveTurns._fields[1:]))
