"""Drafts for the requests of a pass, and the updates of the store after it.

``TreeDrafter`` stands between SGLang's requests and the store, and uses of
SGLang only the attributes in ``served_request``. Invariant: the store is told each
token that the policy sampled once, in the order of the batch, and nothing else.
Of several ranks the first one alone has it (``ranked``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.chain_rows import ChainTurn
from turntree.agents.engines.drafting.trees import with_turn_drafts
from turntree.agents.engines.request_wire import given_of, is_reverified
from turntree.agents.engines.served.drafter import ServedDrafter
from turntree.agents.engines.served.width import WidthChooser
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.rows import Flags, TreeRows, best_nodes, tree_rows
from turntree.agents.engines.sglang.worker.served_request import Served, given_tokens, keeps, reverified_tokens
from turntree.spec_tree import DraftBatch, SpecForest

_UNBOUNDED = 1 << 20
"""Tokens of a turn whose request does not bound them; the context does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Draft counts of a step, per request."""

    drafted: list[int]
    """Verified nodes of each, padding left out."""
    accepted: list[int]
    """Of these, nodes that the policy sampled."""


class _Turn(NamedTuple):
    """A request that samples a turn."""

    request: Served
    slot: int
    """Of its turn."""
    given: list[int]
    """First tokens of the turn, which the request has not sampled."""

    def sampled(self, begin: int) -> Sequence[int]:
        """Tokens of the turn from ``begin`` on."""
        given = len(self.given)
        if begin < given:
            return [*self.given[begin:], *self.request.output_ids]
        return self.request.output_ids[begin - given :]


class _Step(NamedTuple):
    """A pass between its drafts and its result."""

    draft: DraftBatch
    rows: TreeRows
    own: Flags
    """Nodes that the store offered, the caller's drafts left out, shape (nodes,)."""
    began: float


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
        """Start with a store."""
        super().__init__(forest, widest)
        self.widths = settings.widths_within(widest)
        self._settings = settings
        self._clock = clock
        self._device = device
        self.chooser = WidthChooser(self.widths)
        self._turns: dict[str, _Turn] = {}
        """By the id of the request."""
        self._batch: list[_Turn] = []
        """Those of the last pass."""
        self._slots = np.zeros(0, np.int32)
        """Theirs."""
        self._given: dict[str, Served] = {}
        """Requests with given tokens, after their pass over the prompt, in which their turn may end."""
        self._step: _Step | None = None

    def prompts(self, requests: Sequence[Served]) -> None:
        """Hear of the requests of a pass over prompts: a turn with given tokens may end in it."""
        with self._session.timed():
            self._learn()
            for request in requests:
                if request.rid in self._turns:  # retracted: it samples a token behind its prompt that is not read yet
                    self._batch = []
                elif given_of(request.sampling_params.custom_params):
                    self._given[request.rid] = request

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """Draft trees for all requests of a pass.

        Args:
            requests: Each has sampled one token at least.
        """
        with self._session.timed() as began:
            self._session.mark_step(began, went_on=any(request.rid in self._turns for request in requests))
            self._learn()
            self._follow(requests)
            most, room = self._widest(len(requests)) - 1, self._chains.max_draft_lengths(self._slots)
            offered = self._chains.trees(
                self._slots,
                np.minimum(room, self._settings.max_depth),
                max_nodes=most,
                min_probability=self._settings.min_probability,
            )
            width, draft, own = self._chosen(offered, self._chains.turn_drafts(self._slots, np.minimum(room, most)))
            last = np.array([request.output_ids[-1] for request in requests], np.int64)
            rows = tree_rows(draft, last, width)
        self._step = _Step(draft, rows, own, self._clock())
        return rows

    def drafted(self) -> list[int]:
        """Nodes that the pass verifies of each request, padding left out."""
        return [] if self._step is None else np.diff(self._step.draft.offsets).tolist()

    def settle(self) -> StepCounts:
        """Finish a pass: tell the store its requests' new tokens, and count the accepted ones."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("settle() follows propose(), once")
        seconds = self._clock() - step.began
        with self._session.timed():
            drafted, width = np.diff(step.draft.offsets), step.rows.width
            accepted = step.rows.sampled(self._read(width)) & (np.arange(width) <= drafted[:, None])
            accepted[:, 0] = False
            by_node = accepted[:, 1:][np.arange(1, width) <= drafted[:, None]]
            self._end([turn for turn in self._batch if turn.request.finished_reason is not None])
            self.chooser.observe(
                rows=len(drafted),
                width=width,
                estimates=step.draft.probabilities[step.own].astype(np.float64),
                accepted=by_node[step.own],
                seconds=seconds,
            )
            self._count(len(drafted), width, int(drafted.sum()), int(by_node.sum()))
        return StepCounts(drafted=drafted.tolist(), accepted=accepted.sum(1).tolist())

    def idle(self) -> None:
        """Without live requests: end turns that were aborted unseen."""
        self._learn()
        self._end(list(self._turns.values()))

    def _chosen(self, offered: DraftBatch, turn_drafts: list[list[int]]) -> tuple[int, DraftBatch, Flags]:
        """The width of the pass; the nodes to verify, the store's offers after callers' drafts; which are offers."""
        width = self.chooser.choose(offered) if self._settings.adaptive else self._fitting(offered)
        draft = best_nodes(offered, width - 1)
        if turn_drafts:
            longest = max(map(len, turn_drafts))
            width = max(width, self.widths[int(np.searchsorted(self.widths, longest + 1))])
            draft = best_nodes(with_turn_drafts(draft, turn_drafts), width - 1)
        own = np.ones(len(draft.tokens), bool)
        for begin, turn_draft in zip(draft.offsets, turn_drafts, strict=False):
            own[begin : begin + len(turn_draft)] = False
        return width, draft, own

    def _widest(self, rows: int) -> int:
        return self._settings.most_width(rows, self.widths, self._device)

    def _fitting(self, draft: DraftBatch) -> int:
        most = int(np.diff(draft.offsets).max(initial=0))
        return self.widths[0] if most == 0 else self.widths[int(np.searchsorted(self.widths, most + 1))]

    def _follow(self, requests: Sequence[Served]) -> None:
        """Find the turns of a batch's requests, if these are others than in the last pass."""
        if len(requests) == len(self._batch) and all(map(is_, requests, (turn.request for turn in self._batch))):
            return
        if len(self._turns) > len(requests):  # some finished while they were not in the batch; a retracted one returns
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
        """Take what the batch's requests have sampled, -1 after the last, shape (rows, width or more)."""
        lengths = self._chains.lengths(self._slots)
        new = [turn.sampled(length) for turn, length in zip(self._batch, lengths, strict=True)]
        counts = np.fromiter(map(len, new), np.int64, len(new))
        tokens = np.full((len(new), max(width, int(counts.max(initial=0)))), -1, np.int32)
        tokens[np.arange(tokens.shape[1]) < counts[:, None]] = np.fromiter(chain.from_iterable(new), np.int32)
        self.counts.tokens += self._chains.read(self._slots, tokens).tokens
        self._chains.commit()
        return tokens

    def _learn(self) -> None:
        """Tell the store of turns that ended in a pass over prompts, each at once."""
        for request in [each for each in self._given.values() if each.finished_reason is not None]:
            del self._given[request.rid]
            entries, tokens = request.sampling_params.custom_params, request.origin_input_ids
            turn = (
                reverified_tokens(request) if is_reverified(entries) else [*given_tokens(request), *request.output_ids]
            )
            if turn and keeps(request):
                self.counts.tokens += len(turn)
                self._insert(entries, tokens, turn)

    def _end(self, turns: Sequence[_Turn]) -> None:
        for keep in (True, False):
            self._chains.end([turn.slot for turn in turns if keeps(turn.request) is keep], keep=keep)
        for turn in turns:
            del self._turns[turn.request.rid]
        if turns:
            self._batch = []  # the slots may be given again

    def _count(self, rows: int, width: int, drafted: int, accepted: int) -> None:
        counts = self.counts
        counts.steps += 1
        counts.plain_steps += width == 1
        counts.rows += rows
        counts.verified += rows * width
        counts.drafted += drafted
        counts.accepted += accepted
