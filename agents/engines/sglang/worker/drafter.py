"""Drafts for the requests of a pass, and the updates of the draft store after the pass.

A draft is a tree: its root is the last sampled token, and all other nodes are drafted tokens. The number of tokens of a
request in a pass, padding included, is the width of the pass. The draft store receives each token that the policy
sampled exactly once, in the order of the batch, and nothing else. Of several ranks, only the first rank drafts
(``ranked``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.chain_rows import ChainTurn
from turntree.agents.engines.drafting.trees import with_turn_drafts
from turntree.agents.engines.request_wire import given_of, is_reverified
from turntree.agents.engines.served.drafter import ServedDrafter, reverified_turn
from turntree.agents.engines.served.width import WidthChooser
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.rows import Flags, TreeRows, best_nodes, tree_rows
from turntree.spec_tree import DraftBatch, SpecForest


class Served(Protocol):
    """The attributes of SGLang's requests that the drafter uses."""

    @property
    def rid(self) -> str: ...

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """Token ids of the prompt; given tokens, the first tokens of the turn, are at its end."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Sampled tokens."""

    @property
    def sampling_params(self) -> Any:
        """SGLang's ``SamplingParams``."""

    @property
    def finished_reason(self) -> Any:
        """Why the request ended; ``None`` while it is live."""


def given_tokens(request: Served) -> list[int]:
    prompt = request.origin_input_ids
    return list(prompt[len(prompt) - given_of(request.sampling_params.custom_params) :])


def keeps(request: Served) -> bool:
    """Return whether the request ended regularly, so that its turn may be drafted from."""
    reason = request.finished_reason
    return reason is not None and reason.to_json().get("type") in ("stop", "length")


def reverified_tokens(request: Served) -> list[int]:
    """Return the turn of a re-verified request; empty if the request continues or nothing was drawn."""
    entries, sampling = request.sampling_params.custom_params, request.sampling_params
    count = given_of(entries)
    drawn = _drawn(request)[-count:]
    if len(drawn) < count:
        return []
    return reverified_turn(entries, request.origin_input_ids, drawn, sampling.stop_token_ids or ())


def _drawn(request: Served) -> list[int]:
    # `drawing.reverify` writes each drawn token twice, in place of the two most probable tokens.
    rows = [row for row in getattr(request, "input_top_logprobs_idx", None) or [] if row]
    return [int(row[0]) for row in rows] if all(len(row) == 2 and row[0] == row[1] for row in rows) else []


_UNBOUNDED = 1 << 20  #: most tokens of a turn whose request has no limit; the context limits the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Draft counts of a step, per request."""

    drafted: list[int]  #: number of verified nodes, without padding
    accepted: list[int]  #: number of verified nodes that the policy sampled


class _Turn(NamedTuple):
    request: Served
    slot: int  #: slot of the turn in ``Chains``
    given: list[int]  #: first tokens of the turn, given at the end of the prompt

    def tokens(self, begin: int) -> Sequence[int]:  # the turn's tokens from index `begin` on
        given = len(self.given)
        if begin < given:
            return [*self.given[begin:], *self.request.output_ids]
        return self.request.output_ids[begin - given :]


class _Step(NamedTuple):
    draft: DraftBatch
    rows: TreeRows
    from_store: Flags  #: whether the node comes from the draft store, not from the caller's draft, shape (nodes,)
    began: float  #: time at which drafting had ended


class TreeDrafter(ServedDrafter):
    """Drafts for the requests of one engine."""

    def __init__(
        self,
        settings: SglangSettings,
        forest: SpecForest,
        widest: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        device: str = "cpu",
    ) -> None:
        super().__init__(forest, widest)
        self.widths = settings.widths_within(widest)
        self._settings = settings
        self._clock = clock
        self._device = device
        self.chooser = WidthChooser(self.widths)
        self._turns: dict[str, _Turn] = {}  #: by request id; retracted requests keep their turn
        self._batch: list[_Turn] = []  #: turns of the last pass
        self._slots = np.zeros(0, np.int32)  #: slots in ``Chains`` of the turns of the last pass
        self._given: dict[str, Served] = {}  #: requests with given tokens, which may end in the pass over the prompt
        self._step: _Step | None = None

    def prompts(self, requests: Sequence[Served]) -> None:
        """Take the requests of a pass over prompts. A turn with given tokens may end in this pass."""
        with self._session.timed():
            self._insert_ended()
            for request in requests:
                if request.rid in self._turns:
                    # A retracted request processes its prompt and tokens again, and samples one more token in this
                    # pass. Forget the batch, so that `_update_batch` reads that token.
                    self._batch = []
                elif given_of(request.sampling_params.custom_params):
                    self._given[request.rid] = request

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """Draft trees for all requests of a pass; each request has sampled at least one token."""
        with self._session.timed() as began:
            self._session.mark_step(began, went_on=any(request.rid in self._turns for request in requests))
            self._insert_ended()
            self._update_batch(requests)
            # Node 0 is the last sampled token, so a pass of width w has w - 1 drafted nodes.
            widest = self._settings.most_width(len(requests), self.widths, self._device)
            most, max_lengths = widest - 1, self._chains.max_draft_lengths(self._slots)
            offered = self._chains.trees(
                self._slots,
                np.minimum(max_lengths, self._settings.max_depth),
                max_nodes=most,
                min_probability=self._settings.min_probability,
            )
            turn_drafts = self._chains.turn_drafts(self._slots, np.minimum(max_lengths, most))
            width, draft, from_store = self._choose_nodes(offered, turn_drafts)
            last = np.array([request.output_ids[-1] for request in requests], np.int64)
            rows = tree_rows(draft, last, width)
        self._step = _Step(draft, rows, from_store, self._clock())
        return rows

    def drafted(self) -> list[int]:
        """Return the number of nodes that the pass verifies for each request, without padding."""
        return [] if self._step is None else np.diff(self._step.draft.offsets).tolist()

    def settle(self) -> StepCounts:
        """Finish a pass: commit its tokens to the draft store, and count the accepted tokens."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("settle() must be called once after propose()")
        seconds = self._clock() - step.began  # the engine's pass alone, without drafting
        with self._session.timed():
            drafted, width = np.diff(step.draft.offsets), step.rows.width
            accepted = step.rows.sampled(self._read(width)) & (np.arange(width) <= drafted[:, None])
            accepted[:, 0] = False  # the root was sampled before
            # Back from rows to the flat nodes of the draft.
            by_node = accepted[:, 1:][np.arange(1, width) <= drafted[:, None]]
            self._end([turn for turn in self._batch if turn.request.finished_reason is not None])
            self.chooser.observe(
                rows=len(drafted),
                width=width,
                estimates=step.draft.probabilities[step.from_store].astype(np.float64),
                accepted=by_node[step.from_store],
                seconds=seconds,
            )
            self._count(len(drafted), width, int(drafted.sum()), int(by_node.sum()))
        return StepCounts(drafted=drafted.tolist(), accepted=accepted.sum(1).tolist())

    def idle(self) -> None:
        """End turns that were aborted and had no pass afterwards. Call it only while no request is live."""
        self._insert_ended()
        self._end(list(self._turns.values()))

    def _choose_nodes(self, offered: DraftBatch, turn_drafts: list[list[int]]) -> tuple[int, DraftBatch, Flags]:
        # Returns the width of the pass, the nodes to verify, and which of these nodes come from the draft store.
        if self._settings.adaptive:
            width = self.chooser.choose(offered)
        else:
            most = int(np.diff(offered.offsets).max(initial=0))
            width = self._width_for(most) if most else self.widths[0]
        draft = best_nodes(offered, width - 1)
        if turn_drafts:
            # A caller's draft is verified whole: widen the pass for it, then fill up with the store's nodes.
            width = max(width, self._width_for(max(map(len, turn_drafts))))
            draft = best_nodes(with_turn_drafts(draft, turn_drafts), width - 1)
        # The width chooser has estimates only for the draft store's nodes, and learns only from these nodes.
        from_store = np.ones(len(draft.tokens), bool)
        for begin, turn_draft in zip(draft.offsets, turn_drafts, strict=False):
            from_store[begin : begin + len(turn_draft)] = False
        return width, draft, from_store

    def _width_for(self, nodes: int) -> int:
        return self.widths[int(np.searchsorted(self.widths, nodes + 1))]

    def _update_batch(self, requests: Sequence[Served]) -> None:
        # SGLang passes the same request objects while the batch is unchanged.
        if len(requests) == len(self._batch) and all(map(is_, requests, (turn.request for turn in self._batch))):
            return
        # A request outside the batch may be aborted (finished) or retracted (it returns): end only finished turns.
        if len(self._turns) > len(requests):
            self._end([turn for turn in self._turns.values() if turn.request.finished_reason is not None])
        new = [request for request in requests if request.rid not in self._turns]
        slots = self._chains.begin([self._asked_turn(request) for request in new])
        for request, slot in zip(new, slots, strict=True):
            self._given.pop(request.rid, None)
            self._turns[request.rid] = _Turn(request, slot, given_tokens(request))
        self._batch = [self._turns[request.rid] for request in requests]
        self._slots = np.array([turn.slot for turn in self._batch], np.int32)
        self._read()

    def _asked_turn(self, request: Served) -> ChainTurn:
        parameters = request.sampling_params
        most = _UNBOUNDED if parameters.max_new_tokens is None else parameters.max_new_tokens
        return self._asked(parameters.custom_params, request.origin_input_ids, most)

    def _read(self, width: int = 1) -> NDArray[np.int32]:
        # Returns the tokens sampled since the last call, -1 after the last token, shape (rows, width or more).
        lengths = self._chains.lengths(self._slots)
        new = [turn.tokens(length) for turn, length in zip(self._batch, lengths, strict=True)]
        counts = np.fromiter(map(len, new), np.int64, len(new))
        tokens = np.full((len(new), max(width, int(counts.max(initial=0)))), -1, np.int32)
        tokens[np.arange(tokens.shape[1]) < counts[:, None]] = np.fromiter(chain.from_iterable(new), np.int32)
        self.counts.tokens += self._chains.read(self._slots, tokens).tokens
        self._chains.commit()
        return tokens

    def _insert_ended(self) -> None:
        # Turns that ended in their pass over the prompt never reach `propose`; insert them whole.
        for request in [request for request in self._given.values() if request.finished_reason is not None]:
            del self._given[request.rid]
            entries, tokens = request.sampling_params.custom_params, request.origin_input_ids
            if is_reverified(entries):
                turn = reverified_tokens(request)
            else:
                turn = [*given_tokens(request), *request.output_ids]
            if turn and keeps(request):
                self.counts.tokens += len(turn)
                self._insert(entries, tokens, turn)

    def _end(self, turns: Sequence[_Turn]) -> None:
        for keep in (True, False):
            self._chains.end([turn.slot for turn in turns if keeps(turn.request) is keep], keep=keep)
        for turn in turns:
            del self._turns[turn.request.rid]
        if turns:
            self._batch = []  # `Chains` may reuse the slots

    def _count(self, rows: int, width: int, drafted: int, accepted: int) -> None:
        counts = self.counts
        counts.steps += 1
        counts.plain_steps += width == 1
        counts.rows += rows
        counts.verified += rows * width
        counts.drafted += drafted
        counts.accepted += accepted
