"""Entries sent with a request into the processes of an external engine: state, seed and draft.

Each entry is optional and a JSON value, so that an engine in process and its
server take the same. vLLM has them in ``SamplingParams.extra_args``, or over HTTP in
``vllm_xargs``, which takes texts and numbers (``flat``); SGLang in ``custom_params``.

Invariant: nothing here imports an engine, so that both ends can use it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from turntree.agents.engines.protocol import TurnRequest
from turntree.agents.engines.state_wire import KEY, from_wire, to_wire
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)

DRAFT = "turntree_draft"
"""Name of the caller's draft: token ids."""
SEED = "turntree_seed"
"""Name of the seed of all noise: an unsigned 64-bit integer, as text, since JSON readers may round it."""
GIVEN = "turntree_given"
"""Name of the number of tokens at the end of the prompt that are the first ones of the turn."""
MOST = "turntree_most"
"""Name of the greatest length of a verified again request's turn, in tokens."""
REVERIFIED = "turntree_reverified"
"""Name of the mark of a request whose given tokens are a draft: the policy's own are drawn at their positions."""
WORD = 1 << 64
"""Number of possible seeds."""
_MOST_TOKENS = 1 << 31


def request_entries(
    *,
    state: DialogueState | None = None,
    seed: int | None = None,
    draft: Sequence[int] = (),
    given: int = 0,
    reverified: bool = False,
) -> dict[str, Any]:
    """The entries of one request.

    Args:
        seed: Seed of the request's noise; taken modulo 2**64.
        draft: A draft of the turn, token ids, shape (tokens,).
        given: Tokens at the end of the prompt that are the first ones of the turn.
        reverified: Whether these are a draft, at whose positions the policy's own tokens are drawn.

    Example:
        >>> request_entries(seed=-1, draft=(5, 7))
        {'turntree_seed': '18446744073709551615', 'turntree_draft': [5, 7]}
    """
    entries: dict[str, Any] = {}
    if state is not None:
        entries[KEY] = to_wire(state)
    if seed is not None:
        entries[SEED] = str(seed % WORD)
    if len(draft):
        entries[DRAFT] = [int(token) for token in draft]
    if given:
        entries[GIVEN] = given
    if reverified:
        entries[REVERIFIED] = True
    return entries


def turn_entries(request: TurnRequest, *, given: int, reverified: bool = False) -> dict[str, Any]:
    """The entries of a turn's request; of a verified again one the draft stands in the prompt."""
    entries = request_entries(
        state=request.state,
        seed=request.sampling.seed,
        draft=() if reverified else request.draft,
        given=given,
        reverified=reverified,
    )
    return entries | ({MOST: request.sampling.max_tokens} if reverified else {})  # which its request does not sample


def flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """``entries`` with mappings and lists as JSON text; vLLM 0.24 takes no lists."""
    return {name: json.dumps(value) if isinstance(value, Mapping | list) else value for name, value in entries.items()}


def state_of(entries: Mapping[str, Any] | None) -> DialogueState | None:
    """The state of a request, ``None`` if it has none; ``flat`` entries are read as well.

    Raises:
        ValueError: If the entry is not a state.
    """
    value = (entries or {}).get(KEY)
    return None if value is None else from_wire(json.loads(value) if isinstance(value, str) else value)


def turn_state(entries: Mapping[str, Any] | None, prompt_ids: Sequence[int]) -> DialogueState:
    """The state by which a request's drafts are keyed: its own, or without a readable one its prompt.

    Args:
        prompt_ids: Token ids, shape (prompt,).
    """
    try:
        state = state_of(entries)
    except (ValueError, RecursionError) as error:
        logger.warning("a request's dialogue state cannot be read, so its prompt tokens are the key: %s", error)
        state = None
    return state or DialogueState.from_tokens(prompt_ids)


def seed_of(entries: Mapping[str, Any] | None) -> int | None:
    """The seed of a request, in [0, 2**64), ``None`` if it has none.

    Raises:
        ValueError: If the entry is not an integer.
    """
    value = (entries or {}).get(SEED)
    return None if value is None else int(value) % WORD


def noise_seed(entries: Mapping[str, Any] | None) -> int | None:
    """``seed_of`` inside an engine, whose step no request's entries may end: ``None`` if it cannot be read."""
    try:
        return seed_of(entries)
    except (TypeError, ValueError, OverflowError) as error:
        logger.warning("a request's seed is ignored, as it cannot be read: %s", error)
        return None


def given_of(entries: Mapping[str, Any] | None) -> int:
    """The number of tokens at the end of a request's prompt that are the first ones of its turn; 0 if unreadable."""
    return _count(entries, GIVEN)


def is_reverified(entries: Mapping[str, Any] | None) -> bool:
    """Whether a request's given tokens, at least one, are a draft to be verified again."""
    return bool((entries or {}).get(REVERIFIED)) and given_of(entries) > 0


def reverified_most(entries: Mapping[str, Any] | None) -> int:
    """The greatest length of a verified again request's turn; 0 if unreadable."""
    return _count(entries, MOST)


def _count(entries: Mapping[str, Any] | None, name: str) -> int:
    value = (entries or {}).get(name) or 0
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if not 0 <= count < _MOST_TOKENS:
        logger.warning("a request's entry %s is ignored, as it is no number of tokens: %.60r", name, value)
        return 0
    return count


def draft_of(entries: Mapping[str, Any] | None) -> list[int]:
    """The draft of a request; empty if it has none; ``flat`` entries are read as well.

    Raises:
        ValueError: If the entry is not a list of token ids.
    """
    value = (entries or {}).get(DRAFT) or ()
    return [int(token) for token in (json.loads(value) if isinstance(value, str) else value)]


def turn_draft_of(entries: Mapping[str, Any] | None, vocabulary: int) -> list[int]:
    """The draft of a request up to the first token that is not of a vocabulary of so many; empty if it cannot be read.

    >>> turn_draft_of({"turntree_draft": "[4, 5, 99, 6]"}, 10), turn_draft_of({"turntree_draft": "[1e999]"}, 10)
    ([4, 5], [])
    """
    try:
        tokens = draft_of(entries)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        logger.warning("a request's draft is ignored, as it cannot be read: %s", error)
        return []
    return list(takewhile(lambda token: 0 <= token < vocabulary, tokens))
