"""turntree's drafter under asynchronous scheduling: drafting overlaps with the scheduling of the next step.

A step's tokens reach the host by the copy that vLLM makes for its scheduler. The drafting thread waits for the copy,
commits the tokens to the draft store and drafts. Before the inputs of the next step are built, ``trim`` waits for the
drafting thread, uploads the drafts and removes the draft positions without a draft from the step. A step of few tokens
keeps all draft positions, and waits for the drafts later, before its input ids are built (``upload``).

Steps without drafts are buffered, and many are read at once, so they take no longer than without a drafter.
A request that ends in a step is still part of the next step; ``ChainRows`` ignores the tokens that it samples there.
"""

from __future__ import annotations

import threading
import time
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting.chain_rows import StepResult
from turntree.agents.engines.drafting.step_bound import FREE
from turntree.agents.engines.request_wire import given_of
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.overlap import ngram_interface
from turntree.spec_tree.budget.draft_budget import Allowance

_MAX_BUFFERED = 128  #: Number of buffered steps without drafts at which all of them are read.


class _Step(NamedTuple):
    ids: list[str]  #: request ids, shape (rows,)
    requests: dict[str, Any] | None  #: all of vLLM's requests; ``None`` if the batch is unchanged
    resumed: dict[str, list[int]]  #: earlier tokens of the requests that joined or rejoined the batch in this step
    tokens: Tensor  #: sampled tokens, shape (rows, most), -1 after each row's last; valid once ``copied`` has passed
    copied: Any  #: CUDA event at the end of the copy of ``tokens`` to the host
    reading: list[int]  #: rows still inside their prompt; their sampled tokens do not count
    read: int  #: prompt tokens that the step processed


class OverlappedDrafter(ForestDrafter):
    """``ForestDrafter`` with the interface of vLLM's ``NgramProposerGPU``."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config)
        rows, pinned = vllm_config.scheduler_config.max_num_seqs, device.type == "cuda"
        self._on_host = torch.zeros((rows, self._deepest), dtype=torch.int32, pin_memory=pinned)
        self._on_device = self._on_host.to(device, copy=True)
        self._drafts = self._on_host.numpy()
        self._lengths = np.zeros(rows, np.int32)
        self._widths = np.zeros(rows, np.int32)
        #: draft positions that the scheduler planned for each request of the coming step, and how many may be filled
        self._planned = self._width = 0
        self._buffered: list[_Step] = []
        self._ids: list[str] = []  #: request ids of the last step, one per row
        self._upload_pending = False  #: whether the coming step has draft positions that are not uploaded yet
        #: guards the buffered steps and the live turns; never held while waiting for a step
        self._records = threading.Lock()

    def bind(self, runner: Any, *, leads: bool = True) -> None:
        super().bind(runner, leads=leads)
        ngram_interface.follow(runner, self)

    def update_token_ids_ngram(
        self, sampled: Tensor, batch: Any, _tokens: Any, _ends: Any, discarded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return each request's last token, number of sampled tokens, and all sampled tokens.

        All tensors are on the device; -1 after the last token.
        """
        valid = sampled.masked_fill(discarded[: len(sampled), None], -1)
        counts = (valid >= 0).sum(1, dtype=torch.int32)
        last = valid.gather(1, (counts - 1).clamp_(min=0).long()[:, None])[:, 0]
        return last, counts, valid

    def propose(self, *args: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the device buffer of the next step's drafts; ``upload`` fills it."""
        return self._on_device[: len(args[-1])], None

    def record(self, output: Any, width: int, read: int) -> None:
        """Take a step's output, and start drafting for the next step.

        Args:
            output: vLLM's ``AsyncGPUModelRunnerOutput``.
            width: Greatest length of the next step's drafts, 0 for none.
            read: Prompt tokens that the step processed.
        """
        ids: list[str] = output._model_runner_output.req_ids
        requests, resumed = None, {}
        if ids != self._ids:
            # Copy the dictionary: vLLM changes it while the drafting thread reads it.
            requests = dict(self._runner.requests)
            for name in set(ids).difference(self._ids):
                # -1 stands for a token that has not reached the host yet; it arrives with its own step.
                if before := [token for token in requests[name].output_token_ids if token >= 0]:
                    resumed[name] = before
        self._ids = ids
        tokens, copied, reading = (
            output.sampled_token_ids_cpu,
            output.async_copy_ready_event,
            output._invalid_req_indices,
        )
        self._buffered.append(_Step(ids, requests, resumed, tokens, copied, reading, read))
        # Nothing to draft: buffer the step, and read many steps at once later.
        if width == 0 and requests is None and len(self._buffered) < _MAX_BUFFERED:
            return
        self.settle()
        self._planned = width
        # The scheduler plans any length, but CUDA graphs for one draft length exist only for those in `lengths`.
        self._width = width = max((length for length in self.lengths if length <= width), default=width)
        began = time.perf_counter()
        self._session.mark_step(began, went_on=bool(self._rows))
        if width:
            # The last buffered step still runs on the device. Only the drafting thread waits for that step.
            buffered, self._buffered = self._buffered, []
            self._drafting = self._thread.submit(self._read_and_draft, began, buffered, width)
        else:
            with self._records:
                self._read_ended()

    def trim(self, scheduler_output: Any) -> None:
        """Remove the draft positions that have no draft from the coming step.

        Args:
            scheduler_output: The runner's own copy of vLLM's ``SchedulerOutput`` of the coming step.
        """
        # `DraftScheduler` plans drafts only for requests of the last step, so rows have the order of that step.
        planned = scheduler_output.scheduled_spec_decode_tokens
        self._upload_pending = bool(planned)
        if not planned:
            return
        rows = len(self._ids)
        if scheduler_output.total_num_scheduled_tokens > FREE:
            self.upload()
            lengths = self._lengths[:rows]
        else:
            # In a step of few tokens, empty draft positions cost no time: keep all, and wait in `upload` instead.
            lengths = np.full(rows, self._width, np.int32)
        scheduled, spare = scheduler_output.num_scheduled_tokens, 0
        short = np.flatnonzero(lengths < self._planned)
        for row, drafted in zip(short.tolist(), lengths[short].tolist(), strict=True):
            name = self._ids[row]
            tokens = planned.get(name, ())
            if drafted < len(tokens):
                spare += len(tokens) - drafted
                scheduled[name] -= len(tokens) - drafted
                if drafted:
                    planned[name] = tokens[:drafted]
                else:
                    del planned[name]  # vLLM expects no empty lists here
        scheduler_output.total_num_scheduled_tokens -= spare

    def upload(self) -> None:
        """Wait for the drafts and copy them to the device; positions without a draft hold token 0."""
        if self._upload_pending:
            self._upload_pending = False
            self.settle()
            # Copy on the current stream: the copy then ends before the step's kernels read the drafts.
            self._on_device.copy_(self._on_host, non_blocking=True)

    def catch_up(self) -> None:
        self.settle()
        with self._records:
            self._read_ended()

    def take_stats(self, request_id: str) -> tuple[int, int, int] | None:
        # Unlike `ForestDrafter`, do not wait for the running step.
        with self._records:
            self._read_ended()
            return self._stats_of(request_id)

    def _read_ended(self) -> None:
        if self._drafting is not None and not self._drafting.done():
            return  # the drafting thread reads the steps itself
        with self._session.timed(waits=False):
            ready = _ended(self._buffered)
            self._read_all(self._buffered[:ready])
            del self._buffered[:ready]

    def _read_and_draft(self, began: float, buffered: list[_Step], width: int) -> None:
        with self._session.timed(waits=False):
            *earlier, last = buffered
            ended = _ended(earlier)
            with self._records:
                self._read_all(earlier[:ended])
            # Wait without the lock: callers that read counters must not wait for a running step.
            last.copied.synchronize()
            with self._records:
                self._read_all(earlier[ended:])
                step = self._read(last)
                self._chain_budget.learn(step, began, read=last.read)
                allowed, most = None, self._chain_budget.most(step.live)
                if step.live:
                    allowed = self._chain_budget.allow(step.live, turn_drafted=min(step.turn_drafted, most))
                self._draft(allowed, most, width)

    def _draft(self, allowed: Allowance | None, most: int, width: int) -> None:
        rows = len(self._slots)
        self._widths[:rows] = width
        drafts, lengths, widths = self._drafts[:rows], self._lengths[:rows], self._widths[:rows]
        self._chains.propose(self._slots, drafts, lengths, allowed=allowed, most=most, widths=widths)
        if self.lengths:
            lengths[:] = self._cut_to_common_length(drafts, lengths, self.lengths)
        np.maximum(drafts, 0, out=drafts)  # the model embeds padding too, and -1 is not a token id

    def _read_all(self, steps: list[_Step]) -> None:
        while steps:
            # Take all consecutive steps of one batch: `requests` is set in a step whose batch changed.
            batch = [steps[0], *takewhile(lambda step: step.requests is None, steps[1:])]
            steps = steps[len(batch) :]
            if any(step.reading or step.tokens.shape[1] > 1 for step in batch):
                for step in batch:
                    self._read(step)
                    self._draft(None, 0, 0)
                continue
            self._read(batch[0])
            self._draft(None, 0, 0)
            # Every later step has one token per request: read all of them in one call, with one column per step.
            if batch[1:]:
                tokens = np.concatenate([step.tokens.numpy() for step in batch[1:]], axis=1).astype(np.int32)
                result = self._chains.read_singly(self._slots, tokens)
                self.counts.steps += len(batch) - 1
                self.counts.rows += result.tokens
                self.counts.tokens += result.tokens
                self._draft(None, 0, 0)

    def _read(self, step: _Step) -> StepResult:
        self.counts.steps += 1
        tokens: NDArray[np.int32] = step.tokens.numpy().astype(np.int32)
        tokens[step.reading] = -1
        if step.requests is not None:
            self._update_batch(step.ids, step.requests)
            self._drop_inconsistent(step)
        samples = tokens[:, 0] >= 0
        new = np.flatnonzero(samples & (self._slots < 0)).tolist()
        if new:
            self._open(step.ids, samples, {row: [t for t in tokens[row].tolist() if t >= 0] for row in new})
            tokens = self._prepend_earlier(tokens, {row: self._earlier(step, row) for row in new})
        result = self._chains.read(self._slots, tokens)
        self.counts.rows += result.rows
        self.counts.tokens += result.tokens
        return result

    def _drop_inconsistent(self, step: _Step) -> None:
        # If its cache is reset, vLLM drops the tokens that the running step samples. End the turns that counted them.
        for name, before in step.resumed.items():
            row = self._rows.get(name)
            if row is not None and self._chains.lengths([row.slot]) != [len(before) + _given(row.request)]:
                self._chains.end([row.slot], keep=False)
                del self._rows[name]
                self._slots[step.ids.index(name)] = -1

    def _earlier(self, step: _Step, row: int) -> list[int]:
        # First tokens of a turn that this drafter has not read: given at the end of the prompt, or sampled before.
        request = self._requests[row]
        if request is None or request.prompt_token_ids is None:
            return []
        prompt = request.prompt_token_ids
        return [*prompt[len(prompt) - _given(request) :], *step.resumed.get(step.ids[row], ())]

    @staticmethod
    def _prepend_earlier(tokens: NDArray[np.int32], earlier: dict[int, list[int]]) -> NDArray[np.int32]:
        longest = max(map(len, earlier.values()))
        if not longest:
            return tokens
        wider = np.full((len(tokens), longest + tokens.shape[1]), -1, np.int32)
        wider[:, : tokens.shape[1]] = tokens
        for row, first in earlier.items():
            wider[row, : len(first)] = first
            wider[row, len(first) : len(first) + tokens.shape[1]] = tokens[row]
        return wider


def _ended(steps: list[_Step]) -> int:
    # Steps end in order: stop at the first step whose copy has not arrived.
    return sum(1 for _ in takewhile(lambda step: step.copied.query(), steps))


def _given(request: Any) -> int:  # how many of the turn's first tokens end the prompt
    return given_of(request.sampling_params.extra_args)
