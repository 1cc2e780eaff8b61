"""Default bounds on the drafts of one engine step: the total on an accelerator, and the length of each draft.

Verification allocates several float32 tensors as large as the logits, with one row per token. With a vocabulary of
151,936 and 2,048 tokens, each tensor takes 1.2 GB; 256 requests with drafts of 8 tokens would verify 2,304 tokens.
Engines do not count these tensors when they divide an accelerator's memory, so turntree bounds the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VERIFIED = 2048  #: maximum tokens of a step, including the last sampled token of each request
_SHORTEST = 8  #: draft length that every request may have, however many run
#: draft tokens that a step's requests share if each can have more than ``_SHORTEST``. On recorded dialogues drafts are
#: half as long as allowed (``benchmarks/store.py --only lengths``), so about 256 tokens are verified; for these an
#: accelerator mostly reads weights (estimated, not measured)
_TOGETHER = 512
FREE = 256  #: tokens of a step up to which an accelerator mostly reads weights, so that padding takes no time


def most_drafted(given: int | None, rows: int, *, device: str, most: int) -> int:
    """Return the maximum draft tokens of all requests together in one step.

    Args:
        given: The user's bound; ``None`` takes what ``VERIFIED`` leaves on an accelerator, no bound on the CPU.
        most: The bound that follows from the engine's other limits.

    >>> most_drafted(None, 256, device="cuda", most=2304), most_drafted(None, 16, device="cuda", most=128)
    (1792, 128)
    >>> most_drafted(None, 256, device="cpu", most=2304), most_drafted(2000, 256, device="cuda", most=2304)
    (2304, 2000)
    """
    bound = most if device == "cpu" else VERIFIED - rows
    return max(0, min(most, bound if given is None else given))


def draft_length(rows: int, longest: int) -> int:
    """Return the maximum draft length in a step of ``rows`` requests, at most the engine's limit ``longest``.

    Long drafts pay off with few requests: a step of 32 tokens then takes about as long as a step of 8.

    >>> [draft_length(rows, 32) for rows in (0, 1, 16, 24, 64, 256)]
    [32, 32, 32, 21, 8, 8]
    >>> draft_length(1, 4), draft_length(256, 4)
    (4, 4)
    """
    return min(longest, max(_SHORTEST, _TOGETHER // max(rows, 1)))


def common_length(lengths: NDArray[np.int32], choices: Sequence[int], most: int) -> int:
    """Return the common length that all drafts of a step are padded to, for graphs of one draft length.

    The result is the shortest choice that holds every draft, or the longest within ``draft_length``. At least a quarter
    of the padded positions must hold draft tokens, unless the step has at most ``FREE`` tokens. More padding would cost
    what the drafts gain: a step of one request takes about ten times as long as one more token in the step (estimated,
    not measured).

    Args:
        lengths: Tokens of each draft, shape (rows,).
        choices: Lengths to choose from besides 0, ascending.
        most: Maximum tokens of all drafts together.

    >>> few, many = np.array([1, 2, 7, 0]), np.array([8] * 50 + [0] * 206)
    >>> common_length(few, [2, 4, 8], most=32), common_length(few, [2, 4, 8], most=16)
    (8, 4)
    >>> common_length(many, [2, 4, 8], most=2048), common_length(many[:90], [2, 4, 8], most=2048)
    (0, 8)
    """
    rows, longest = len(lengths), int(lengths.max(initial=0))
    most = min(most, rows * draft_length(rows, choices[-1]), VERIFIED - rows)
    found = 0
    for choice in choices:
        if found >= longest or rows * choice > most:
            break
        if rows * (1 + choice) > FREE and 4 * int(np.minimum(lengths, choice).sum()) < rows * choice:
            break
        found = choice
    return found
