"""Conversion of turns to the form of the ledger, the store of whole turns for reuse, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.agents.engines.splice import narrowed
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import StoredTurn


def storage_key(prompt: Sequence[int], sampling: Sampling) -> tuple[float, ...]:
    """Return a hash of the exact prompt, and every sampling parameter that changes the distribution after it."""
    return (
        DialogueState.from_tokens(prompt).exact,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )


def stored_turn(completion: Completion, sampling: Sampling, *, seed: int | None, width: int) -> StoredTurn | None:
    """Return a turn in the ledger's form; ``None`` if it was aborted or could not be verified later.

    Keeps the ``width`` most probable tokens at each position.
    """
    count, top = len(completion.token_ids), narrowed(completion.top, width)
    if completion.finish_reason is FinishReason.ABORT or not count or (width and top is None):
        return None
    return StoredTurn(
        tokens=np.array(completion.token_ids, np.int32),
        logprobs=np.array(completion.behaviour_logprobs or completion.logprobs, np.float32),
        # A view of the completion's table would keep all its columns in memory.
        top_ids=np.zeros((count, 0), np.int32) if top is None else np.ascontiguousarray(top.ids),
        top_logprobs=np.zeros((count, 0), np.float32) if top is None else np.ascontiguousarray(top.logprobs),
        seed=seed,
        version=completion.weights_version,
        token_limit=sampling.max_tokens,
        stopped=completion.finish_reason is FinishReason.STOP,
    )


class Offer(NamedTuple):
    """The part of a stored turn that a request allows as a draft."""

    tokens: list[int]  #: first tokens of the stored turn, up to the first stop token of the request; at least one
    most: int  #: most tokens of the new turn


def offer(turn: StoredTurn, sampling: Sampling) -> Offer:
    """Return the part of a stored turn that the request allows."""
    most = sampling.max_tokens
    if not turn.stopped and len(turn.tokens) < turn.token_limit:
        most = min(most, len(turn.tokens))  # the stored turn ended because the context was full
    tokens = turn.tokens[:most].tolist()
    for index, token in enumerate(tokens):
        if token in sampling.stop_token_ids:
            return Offer(tokens[: index + 1], most)
    return Offer(tokens, most)


def within(state: DialogueState | None, prompt: Sequence[int]) -> DialogueState | None:
    """Return the dialogue state after ``prompt``, which may end inside a turn of ``state``'s dialogue."""
    if state is None:
        return None
    return DialogueState.from_tokens(prompt, task=state.task, tools=state.tools, env=state.env)
