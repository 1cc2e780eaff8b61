"""Entries that a request carries into an external engine's processes: state, seed and draft.

Each entry is optional and a JSON value, so that an in-process engine and an HTTP server take the same entries. vLLM
takes them in ``SamplingParams.extra_args``, or over HTTP in ``vllm_xargs``, which takes strings and numbers only
(``flat``). SGLang takes them in ``custom_params``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from turntree.agents.engines.protocol import TurnRequest
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)

KEY = "turntree_state"  #: the dialogue state, see ``to_wire``
DRAFT = "turntree_draft"  #: the caller's draft: token ids
SEED = "turntree_seed"  #: seed of all noise: an unsigned 64-bit integer, as a string, since JSON readers may round it
GIVEN = "turntree_given"  #: how many of the prompt's last tokens already belong to the turn
MOST = "turntree_most"  #: maximum length of a re-verified turn, in tokens
#: marks a re-verified request: its given tokens are a draft, at whose positions the policy samples its own tokens
REVERIFIED = "turntree_reverified"
WORD = 1 << 64  #: number of values of a 64-bit word, i.e. of possible seeds
_MOST_TOKENS = 1 << 31  #: counts of tokens from here on are ignored


def to_wire(state: DialogueState) -> dict[str, str]:
    """Return the state as a flat mapping of strings; the hash is hexadecimal, since JSON readers may round it.

    Example:
        >>> to_wire(DialogueState(exact=255, task="7"))
        {'exact': 'ff', 'task': '7', 'tools': '', 'env': ''}
    """
    return {"exact": f"{state.exact:x}", "task": state.task, "tools": state.tools, "env": state.env}


def from_wire(values: Mapping[str, Any]) -> DialogueState:
    """Read the mapping that ``to_wire`` returns.

    Raises:
        ValueError: If it is not such a mapping.
    """
    try:
        texts = {name: values[name] for name in ("task", "tools", "env")}
        exact = int(values["exact"], 16)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{KEY} must be a mapping as turntree.agents.engines.request_wire.to_wire returns: exact (hexadecimal), "
            f"task, tools and env, got {values!r}"
        ) from error
    if not all(isinstance(text, str) for text in texts.values()) or not 0 <= exact < 1 << 64:
        raise ValueError(f"{KEY} must hold texts and a 64-bit exact, got {values!r}")
    return DialogueState(exact=exact, **texts)


def request_entries(
    *,
    state: DialogueState | None = None,
    seed: int | None = None,
    draft: Sequence[int] = (),
    given: int = 0,
    reverified: bool = False,
) -> dict[str, Any]:
    """Return the entries of one request.

    Args:
        seed: Seed of the request's noise, taken modulo 2**64.
        draft: A draft of the turn, token ids, shape (tokens,).
        given: How many of the prompt's last tokens already belong to the turn.
        reverified: Whether the given tokens are a draft, at whose positions the policy samples its own tokens.

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
    """Return the entries of a turn's request; a re-verified turn has its draft in the prompt, not in an entry."""
    entries = request_entries(
        state=request.state,
        seed=request.sampling.seed,
        draft=() if reverified else request.draft,
        given=given,
        reverified=reverified,
    )
    # A re-verifying request itself samples one token, so the turn's own limit travels separately.
    return entries | ({MOST: request.sampling.max_tokens} if reverified else {})


def flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``entries`` with mappings and lists as JSON text, since vLLM 0.24 takes no lists."""
    return {name: json.dumps(value) if isinstance(value, Mapping | list) else value for name, value in entries.items()}


def state_of(entries: Mapping[str, Any] | None) -> DialogueState | None:
    """Return the state of a request, ``None`` if it has none; reads ``flat`` entries as well.

    Raises:
        ValueError: If the entry is not a state.
    """
    value = (entries or {}).get(KEY)
    return None if value is None else from_wire(json.loads(value) if isinstance(value, str) else value)


def turn_state(entries: Mapping[str, Any] | None, prompt_ids: Sequence[int]) -> DialogueState:
    """Return the state that keys a request's drafts: its own, or its prompt (token ids) if it has no readable one."""
    try:
        state = state_of(entries)
    except (ValueError, RecursionError) as error:
        logger.warning("a request's dialogue state cannot be read, so its prompt is used as the key: %s", error)
        state = None
    return state or DialogueState.from_tokens(prompt_ids)


def seed_of(entries: Mapping[str, Any] | None) -> int | None:
    """Return the seed of a request in [0, 2**64), ``None`` if it has none.

    Raises:
        ValueError: If the entry is not an integer.
    """
    value = (entries or {}).get(SEED)
    return None if value is None else int(value) % WORD


def noise_seed(entries: Mapping[str, Any] | None) -> int | None:
    # as ``seed_of``, but an unreadable entry must not crash the engine's step
    try:
        return seed_of(entries)
    except (TypeError, ValueError, OverflowError) as error:
        logger.warning("ignoring the seed of a request, which cannot be read: %s", error)
        return None


def given_of(entries: Mapping[str, Any] | None) -> int:
    """Return how many of the prompt's last tokens already belong to the turn; 0 if unreadable."""
    return _count(entries, GIVEN)


def is_reverified(entries: Mapping[str, Any] | None) -> bool:
    return bool((entries or {}).get(REVERIFIED)) and given_of(entries) > 0


def reverified_most(entries: Mapping[str, Any] | None) -> int:  # the token limit of a re-verified turn
    return _count(entries, MOST)


def _count(entries: Mapping[str, Any] | None, name: str) -> int:
    value = (entries or {}).get(name) or 0
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if not 0 <= count < _MOST_TOKENS:
        logger.warning("ignoring the entry %s of a request: expected a number of tokens, got %.60r", name, value)
        return 0
    return count


def draft_of(entries: Mapping[str, Any] | None) -> list[int]:
    """Return the draft of a request, empty if it has none; reads ``flat`` entries as well.

    Raises:
        ValueError: If the entry is not a list of token ids.
    """
    value = (entries or {}).get(DRAFT) or ()
    return [int(token) for token in (json.loads(value) if isinstance(value, str) else value)]


def turn_draft_of(entries: Mapping[str, Any] | None, vocabulary: int) -> list[int]:
    """Return the draft up to the first token outside of the vocabulary; empty if it cannot be read.

    >>> turn_draft_of({"turntree_draft": "[4, 5, 99, 6]"}, 10), turn_draft_of({"turntree_draft": "[1e999]"}, 10)
    ([4, 5], [])
    """
    try:
        tokens = draft_of(entries)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        logger.warning("ignoring the draft of a request, which cannot be read: %s", error)
        return []
    return list(takewhile(lambda token: 0 <= token < vocabulary, tokens))
