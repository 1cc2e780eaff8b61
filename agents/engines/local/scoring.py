"""Scoring of given tokens under the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.local.node_distributions import (
    NodeDistributions,
    Top,
    chosen_logprobs,
    entropies,
    most_probable,
)
from turntree.agents.engines.local.request import Request
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.verify import root

Ints = NDArray[np.int64]

_TOGETHER = 1 << 23  #: maximum logits processed at once


def score(rows: Sequence[Request], draft: DraftBatch, logits: Tensor) -> None:
    """Score the next given tokens of each request and append the scores to the request.

    ``draft`` holds these tokens as chains; the position after a chain is scored too. ``logits`` has shape
    (rows + nodes, vocabulary).
    """
    distributions = NodeDistributions(rows, draft, logits)
    start = np.append(root(draft), len(logits))
    for first, last in _groups(np.diff(start) * logits.shape[-1]):
        _score(rows[first:last], distributions, start[first : last + 1])


def _groups(sizes: Ints) -> Iterator[tuple[int, int]]:
    first, held = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if held and held + size > _TOGETHER:
            yield first, row
            first, held = row, 0
        held += size
    yield first, len(sizes)


def _score(rows: Sequence[Request], distributions: NodeDistributions, start: Ints) -> None:
    # ``start``: the first node of each row, and the end of the last row
    count = np.diff(start)
    given = [r.turn_draft[r.scored : r.scored + n] for r, n in zip(rows, count.tolist(), strict=True)]
    nodes = np.arange(start[0], start[-1])
    tokens = np.zeros(len(nodes), np.int64)
    for base, some in zip((start[:-1] - start[0]).tolist(), given, strict=True):
        tokens[base : base + len(some)] = some
    reshaped = distributions.at(nodes)
    behaviour = chosen_logprobs(reshaped, tokens)
    policy = behaviour if distributions.plain else distributions.policy_logprobs(nodes, tokens)
    probabilities = reshaped.softmax(-1)
    entropy, variance = entropies(probabilities)
    k = max(r.sampling.top_logprobs for r in rows)
    top = most_probable(probabilities, k) if k else None
    for b, (request, some) in enumerate(zip(rows, given, strict=True)):
        base = int(start[b] - start[0])
        mine = slice(base, base + len(some))
        request.tokens += some
        request.advance(some)
        request.computed += int(count[b]) - 1
        request.scored += int(count[b])
        request.logprobs += policy[mine].tolist()
        request.behaviour += behaviour[mine].tolist()
        request.entropies += entropy[mine].tolist()
        request.entropy_variances += variance[mine].tolist()
        own = request.sampling.top_logprobs
        if own and top is not None:
            whole = slice(base, base + int(count[b]))
            request.top.append(Top(top.ids[whole, :own], top.logprobs[whole, :own]))
