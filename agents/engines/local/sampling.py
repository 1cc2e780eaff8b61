"""Sampling of the tokens of one step and of their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting.race import race
from turntree.agents.engines.local.node_distributions import NodeDistributions, Top, entropies, most_probable
from turntree.agents.engines.local.request import Request
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.verify import Verified, root, sample_then_match

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EAGER = 1 << 21  #: logits up to which all nodes are sampled at once; above, only nodes that verification reaches


def emit(
    rows: Sequence[Request],
    draft: DraftBatch,
    turn_drafted: Ints,
    token_limits: Ints,
    logits: Tensor,
    *,
    monitors: bool,
) -> Verified:
    """Draw the tokens of a step and append them to their requests.

    Nodes are draft tokens; the first ``turn_drafted`` nodes of each row are the caller's draft. ``token_limits``, at
    least 1, bound the tokens per row. ``logits`` has shape (rows + nodes, vocabulary).
    """

    def stops(at: Ints, tokens: Ints) -> NDArray[np.bool_]:
        placed = zip(at.tolist(), tokens.tolist(), strict=True)
        return np.array([token in rows[b].sampling.stop_token_ids for b, token in placed], bool)

    draws = _Draws(rows, draft, turn_drafted, logits, monitors=monitors)
    verified = sample_then_match(draft, draws, token_limits, stops)
    _append(rows, draft, verified, draws)
    return verified


def _append(rows: Sequence[Request], draft: DraftBatch, verified: Verified, draws: _Draws) -> None:
    emitted = verified.emitted
    drawn = np.arange(len(verified.path))[:, None] < emitted
    # Each token was sampled at the node that the token before it matched; -1 stands for the row's last old token.
    above = np.concatenate([np.full((1, len(rows)), -1), verified.path[:-1]])
    nodes = (root(draft) + 1 + above).T[drawn.T]
    tokens, path = verified.tokens.T[drawn.T], verified.path.T[drawn.T]
    found = draws.readings(nodes, tokens)
    matched = path >= 0
    start = np.cumsum(emitted) - emitted
    sums = None if found.monitored is None else _sums(found.behaviour, matched, found.monitored, start)
    new_tokens, behaviour, accepted = tokens.tolist(), found.behaviour.tolist(), matched.tolist()
    policy = behaviour if found.policy is found.behaviour else found.policy.tolist()
    drafted = np.diff(draft.offsets).tolist()
    for b, (request, first, count) in enumerate(zip(rows, start.tolist(), emitted.tolist(), strict=True)):
        mine = slice(first, first + count)
        request.tokens += new_tokens[mine]
        request.logprobs += policy[mine]
        request.behaviour += behaviour[mine]
        request.accepted += accepted[mine]
        request.computed += sum(accepted[mine])
        request.verify_steps += 1
        request.drafted += drafted[b]
        if sums is not None:
            request.monitored.add(sums[b])
        k = request.sampling.top_logprobs
        if k and found.top is not None:
            request.top.append((found.top.ids[mine, :k], found.top.logprobs[mine, :k]))


def _sums(behaviour: Floats, matched: NDArray[np.bool_], monitor: Monitor, start: Ints) -> list[list[float]]:
    mass = np.where(monitor.tested, monitor.mass, 0.0)
    columns = np.stack(
        [
            monitor.tested, monitor.tested & matched, mass, mass * (1 - mass),
            -behaviour, monitor.entropy, monitor.entropy_variance,
        ]
    )  # fmt: skip
    sums: list[list[float]] = np.add.reduceat(columns, start, axis=1).T.tolist()
    return sums


class Monitor(NamedTuple):
    """Terms of the exactness monitors at some nodes, each of shape (nodes,)."""

    entropy: Floats  #: nats
    entropy_variance: Floats  #: variance of -log p, nats squared
    mass: Floats  #: probability of the drafted children
    tested: NDArray[np.bool_]  #: whether the node has children, none from a caller's draft


class StepLogprobs(NamedTuple):
    """Log-probabilities of the tokens drawn at some nodes, each of shape (nodes,)."""

    policy: Floats  #: before penalties, min-p, top-k and top-p
    behaviour: Floats  #: after all transforms
    monitored: Monitor | None  #: ``None`` if not requested
    top: Top | None  #: most probable tokens, as many as any request records; ``None`` if no request records any


class _Draws:
    def __init__(
        self, rows: Sequence[Request], draft: DraftBatch, turn_drafted: Ints, logits: Tensor, *, monitors: bool
    ) -> None:
        self._distributions = NodeDistributions(rows, draft, logits)
        self._seeds = np.array([r.seed for r in rows], np.uint64)
        self._sampled = np.array([r.sampled for r in rows], np.int64)
        self._monitors = monitors
        self._top = max(r.sampling.top_logprobs for r in rows)
        first = root(draft)
        node_row = np.repeat(np.arange(len(rows)), np.diff(draft.offsets))
        node = np.arange(len(draft.tokens)) - draft.offsets[node_row]
        self._children = draft.tokens.astype(np.int64)
        self._above = first[node_row] + 1 + draft.parents
        # The monitors test nodes with drafted children, except where a child is from a caller's draft: that child
        # may come from the same noise as the sampled token.
        self._testable = np.zeros(len(logits), bool)
        self._testable[self._above] = True
        self._testable[self._above[node < turn_drafted[node_row]]] = False
        self._read: list[tuple[Ints, StepLogprobs]] = []  #: nodes sampled at each depth, and their log-probabilities
        self._all: tuple[Tensor, Ints, Floats] | None = None  #: of all nodes: probabilities, tokens, log-probabilities
        if logits.numel() <= EAGER:
            depths = np.zeros(len(logits), np.int64)
            depths[first[node_row] + 1 + node] = draft.depths
            probabilities = self._distributions.at(None).softmax(-1)
            owner = self._distributions.rows
            tokens = race(probabilities, self._seeds[owner], self._sampled[owner] + depths)
            self._all = probabilities, tokens.cpu().numpy(), _chosen(probabilities, tokens)

    def __call__(self, rows: Ints, nodes: Ints, depth: int) -> tuple[Ints, Floats]:
        if self._all is not None:
            _, tokens, logprobs = self._all
            return tokens[nodes], logprobs[nodes]
        probabilities = self._distributions.at(nodes).softmax(-1)
        drawn = race(probabilities, self._seeds[rows], self._sampled[rows] + depth)
        tokens, logprobs = drawn.cpu().numpy(), _chosen(probabilities, drawn)
        self._read.append((nodes, self._readings(nodes, probabilities, tokens, logprobs)))
        return tokens, logprobs

    def readings(self, nodes: Ints, tokens: Ints) -> StepLogprobs:
        if self._all is not None:
            probabilities, _, logprobs = self._all
            if len(nodes) < len(probabilities):
                probabilities = probabilities[torch.from_numpy(nodes).to(probabilities.device)]
            return self._readings(nodes, probabilities, tokens, logprobs[nodes])
        index = np.empty(len(self._testable), np.int64)
        passed = np.concatenate([nodes for nodes, _ in self._read])
        index[passed] = np.arange(len(passed))
        return _joined([found for _, found in self._read], index[nodes])

    def _readings(self, nodes: Ints, probabilities: Tensor, tokens: Ints, logprobs: Floats) -> StepLogprobs:
        monitored = None
        if self._monitors:
            monitored = Monitor(*entropies(probabilities), self._mass(nodes, probabilities), self._testable[nodes])
        return StepLogprobs(
            policy=logprobs if self._distributions.plain else self._distributions.policy_logprobs(nodes, tokens),
            behaviour=logprobs,
            monitored=monitored,
            top=most_probable(probabilities, self._top) if self._top else None,
        )

    def _mass(self, nodes: Ints, probabilities: Tensor) -> Floats:
        if not len(self._children):
            return np.zeros(len(nodes))
        index = np.full(len(self._testable), -1, np.int64)
        index[nodes] = np.arange(len(nodes))
        at = index[self._above]
        asked = at >= 0
        device = probabilities.device
        each = probabilities[torch.from_numpy(at[asked]).to(device), torch.from_numpy(self._children[asked]).to(device)]
        mass = np.bincount(at[asked], weights=each.double().cpu().numpy(), minlength=len(nodes))
        return np.minimum(mass, 1.0)


def _chosen(probabilities: Tensor, tokens: Tensor) -> Floats:
    logprobs: Floats = probabilities.gather(-1, tokens[:, None])[:, 0].log().double().cpu().numpy()
    return logprobs


def _joined(parts: Sequence[StepLogprobs], order: Ints) -> StepLogprobs:
    def taken(columns: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
        return [np.concatenate(column)[order] for column in zip(*columns, strict=True)]

    monitors = [part.monitored for part in parts if part.monitored is not None]
    tops = [part.top for part in parts if part.top is not None]
    policy, behaviour = taken([(part.policy, part.behaviour) for part in parts])
    return StepLogprobs(
        policy=policy,
        behaviour=behaviour,
        monitored=Monitor._make(taken(monitors)) if monitors else None,
        top=Top._make(taken(tops)) if tops else None,
    )
