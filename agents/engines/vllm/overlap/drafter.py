"""turntree's drafter beside asynchronous scheduling: the store is asked while vLLM schedules the next step.

A step's tokens reach the host by the copy that vLLM makes for its scheduler anyway. The drafting thread waits for it,
commits them and drafts; before the next step's inputs are made ``trim`` waits for that thread, uploads the drafts, and
gives back the places that have none. In a step of few tokens all places that may have one stay, and only its input ids
wait. Steps without drafts before or after them are only kept, and read several at a time, so that they cost what they
cost without a drafter.

A turn that ends in a step still takes part in the next one, whose tokens ``ChainRows`` ignores.
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

_HELD = 128
"""Steps without drafts after which they are read."""


class _Step(NamedTuple):
    """Tokens of one step, on their way to the host."""

    ids: list[str]
    """Requests, shape (rows,)."""
    requests: dict[str, Any] | None
    """All that vLLM has, where the batch is another one than in the step before."""
    resumed: dict[str, list[int]]
    """Tokens that requests sampled before this step, of those that were not in the step before."""
    tokens: Tensor
    """-1 after the last of each row, shape (rows, most); filled once ``copied`` has passed."""
    copied: Any
    """CUDA event."""
    reading: list[int]
    """Rows that are still in the middle of their prompt; what they sampled counts for nothing."""
    read: int
    """Prompt tokens that were processed."""


class OverlappedDrafter(ForestDrafter):
    """``ForestDrafter`` by the contract of vLLM's ``NgramProposerGPU``."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        """Read the settings; vLLM calls this."""
        super().__init__(vllm_config)
        rows, pinned = vllm_config.scheduler_config.max_num_seqs, device.type == "cuda"
        self._on_host = torch.zeros((rows, self._deepest), dtype=torch.int32, pin_memory=pinned)
        self._on_device = self._on_host.to(device, copy=True)
        self._drafts = self._on_host.numpy()
        self._lengths = np.zeros(rows, np.int32)
        self._widths = np.zeros(rows, np.int32)
        self._planned = self._width = 0
        """Places of each request in the coming step, and how many of them may have a draft."""
        self._held: list[_Step] = []
        self._ids: list[str] = []
        self._awaited = False
        """Whether the coming step has places for drafts that are not on the device yet."""
        self._records = threading.Lock()
        """Held by whoever reads steps or turns; not while a step is waited for."""

    def bind(self, runner: Any, *, leads: bool = True) -> None:
        """As ``ForestDrafter.bind``."""
        super().bind(runner, leads=leads)
        ngram_interface.follow(runner, self)

    def update_token_ids_ngram(
        self, sampled: Tensor, batch: Any, _tokens: Any, _ends: Any, discarded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The last token of each request, how many it sampled, and all of them, -1 after the last; on the device."""
        kept = sampled.masked_fill(discarded[: len(sampled), None], -1)
        counts = (kept >= 0).sum(1, dtype=torch.int32)
        last = kept.gather(1, (counts - 1).clamp_(min=0).long()[:, None])[:, 0]
        return last, counts, kept

    def propose(self, *args: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """Where the next step's drafts will be on the device, shape (rows, longest); ``upload`` fills it."""
        return self._on_device[: len(args[-1])], None

    def record(self, output: Any, width: int, read: int) -> None:
        """Take a step's output, and begin with the drafts of the next one.

        Args:
            output: vLLM's ``AsyncGPUModelRunnerOutput``.
            width: Greatest length of the next step's drafts, 0 for none.
            read: Prompt tokens that the step processed.
        """
        ids: list[str] = output._model_runner_output.req_ids
        requests, resumed = None, {}
        if ids != self._ids:
            requests = dict(self._runner.requests)
            for name in set(ids).difference(self._ids):
                if before := [token for token in requests[name].output_token_ids if token >= 0]:
                    resumed[name] = before
        self._ids = ids
        self._held.append(
            _Step(
                ids,
                requests,
                resumed,
                output.sampled_token_ids_cpu,
                output.async_copy_ready_event,
                output._invalid_req_indices,
                read,
            )
        )
        if width == 0 and requests is None and len(self._held) < _HELD:
            return
        self.settle()
        self._planned = width
        self._width = width = max((length for length in self.lengths if length <= width), default=width)
        began = time.perf_counter()
        self._session.mark_step(began, went_on=bool(self._rows))
        if width:
            held, self._held = self._held, []
            self._drafting = self._thread.submit(self._read_and_draft, began, held, width)
        else:
            with self._records:
                self._read_ended()

    def trim(self, scheduler_output: Any) -> None:
        """Upload the drafts, once they are made, and take the places of a step that have none out of it.

        Only requests of the last step's batch have places (``DraftScheduler``).

        Args:
            scheduler_output: The runner's own copy of vLLM's ``SchedulerOutput`` of the coming step.
        """
        planned = scheduler_output.scheduled_spec_decode_tokens
        self._awaited = bool(planned)
        if not planned:
            return
        rows = len(self._ids)
        if scheduler_output.total_num_scheduled_tokens > FREE:
            self.upload()
            kept = self._lengths[:rows]
        else:  # these places are verified, whatever comes to stand there; the drafts are waited for in ``upload``
            kept = np.full(rows, self._width, np.int32)
        scheduled, spare = scheduler_output.num_scheduled_tokens, 0
        short = np.flatnonzero(kept < self._planned)
        for place, drafted in zip(short.tolist(), kept[short].tolist(), strict=True):
            name = self._ids[place]
            tokens = planned.get(name, ())
            if drafted < len(tokens):
                spare += len(tokens) - drafted
                scheduled[name] -= len(tokens) - drafted
                if drafted:
                    planned[name] = tokens[:drafted]
                else:
                    del planned[name]
        scheduler_output.total_num_scheduled_tokens -= spare

    def upload(self) -> None:
        """Wait for the drafts, and bring them to the device; places without one have token 0."""
        if self._awaited:
            self._awaited = False
            self.settle()
            self._on_device.copy_(self._on_host, non_blocking=True)

    def catch_up(self) -> None:
        """As ``ForestDrafter.catch_up``."""
        self.settle()
        with self._records:
            self._read_ended()

    def take_stats(self, request_id: str) -> tuple[int, int, int] | None:
        """As ``ForestDrafter.take_stats``, of the steps that have ended; the one that runs is not waited for."""
        with self._records:
            self._read_ended()
            return self._stats_of(request_id)

    def _read_ended(self) -> None:
        """Read what is kept of steps that have ended; all of those that an asked for request took part in."""
        if self._drafting is not None and not self._drafting.done():
            return  # it reads them itself
        with self._session.timed(waits=False):
            ready = 0
            while ready < len(self._held) and self._held[ready].copied.query():
                ready += 1
            self._read_all(self._held[:ready])
            del self._held[:ready]

    def _read_and_draft(self, began: float, held: list[_Step], width: int) -> None:
        with self._session.timed(waits=False):
            with self._records:
                self._read_all(held[:-1])
            held[-1].copied.synchronize()
            with self._records:
                found = self._read(held[-1])
                self._chain_budget.learn(found, began, read=held[-1].read)
                most = self._chain_budget.most(found.live)
                allowed = (
                    self._chain_budget.allow(found.live, turn_drafted=min(found.turn_drafted, most))
                    if found.live
                    else None
                )
                self._draft(allowed, most, width)

    def _draft(self, allowed: Allowance | None, most: int, width: int) -> None:
        """Pass the tokens that were read last on to the store, and draft at most ``width`` tokens a request."""
        rows = len(self._slots)
        self._widths[:rows] = width
        drafts, lengths, widths = self._drafts[:rows], self._lengths[:rows], self._widths[:rows]
        self._chains.propose(self._slots, drafts, lengths, allowed=allowed, most=most, widths=widths)
        if self.lengths:
            lengths[:] = self._alike(drafts, lengths, self.lengths)
        np.maximum(drafts, 0, out=drafts)  # -1 is no token of the model's

    def _read_all(self, steps: list[_Step]) -> None:
        """Take the tokens of steps that have ended, those of one batch in which all sampled one token together."""
        while steps:
            batch = [steps[0], *takewhile(lambda step: step.requests is None, steps[1:])]
            steps = steps[len(batch) :]
            if any(step.reading or step.tokens.shape[1] > 1 for step in batch):
                for step in batch:
                    self._read(step)
                    self._draft(None, 0, 0)
                continue
            self._read(batch[0])
            self._draft(None, 0, 0)
            if batch[1:]:
                tokens = np.concatenate([step.tokens.numpy() for step in batch[1:]], axis=1).astype(np.int32)
                found = self._chains.read_singly(self._slots, tokens)
                self.counts.steps += len(batch) - 1
                self.counts.rows += found.tokens
                self.counts.tokens += found.tokens
                self._draft(None, 0, 0)

    def _read(self, step: _Step) -> StepResult:
        """Take the tokens of one step."""
        self.counts.steps += 1
        tokens: NDArray[np.int32] = step.tokens.numpy().astype(np.int32)
        tokens[step.reading] = -1
        if step.requests is not None:
            self._follow(step.ids, step.requests)
            self._drop_unlike(step)
        samples = tokens[:, 0] >= 0
        new = np.flatnonzero(samples & (self._slots < 0)).tolist()
        if new:
            self._open(step.ids, samples, {place: [t for t in tokens[place].tolist() if t >= 0] for place in new})
            tokens = self._after_earlier(tokens, {place: self._earlier(step, place) for place in new})
        found = self._chains.read(self._slots, tokens)
        self.counts.rows += found.rows
        self.counts.tokens += found.tokens
        return found

    def _drop_unlike(self, step: _Step) -> None:
        """Let turns go that are not as far as their requests: vLLM drops what it sampled while it resets its cache."""
        for name, before in step.resumed.items():
            row = self._rows.get(name)
            if row is not None and self._chains.lengths([row.slot]) != [len(before) + _given(row.request)]:
                self._chains.end([row.slot], keep=False)
                del self._rows[name]
                self._slots[step.ids.index(name)] = -1

    def _earlier(self, step: _Step, place: int) -> list[int]:
        """The first tokens of a turn that begins: given with the prompt, or sampled before."""
        request = self._requests[place]
        if request is None or request.prompt_token_ids is None:
            return []
        given = _given(request)
        return [
            *request.prompt_token_ids[len(request.prompt_token_ids) - given :],
            *step.resumed.get(step.ids[place], ()),
        ]

    @staticmethod
    def _after_earlier(tokens: NDArray[np.int32], earlier: dict[int, list[int]]) -> NDArray[np.int32]:
        """Tokens of a step, each after the first ones of its turn."""
        longest = max(map(len, earlier.values()))
        if not longest:
            return tokens
        wider = np.full((len(tokens), longest + tokens.shape[1]), -1, np.int32)
        wider[:, : tokens.shape[1]] = tokens
        for place, first in earlier.items():
            wider[place, : len(first)] = first
            wider[place, len(first) : len(first) + tokens.shape[1]] = tokens[place]
        return wider


def _given(request: Any) -> int:
    """Tokens at the end of a request's prompt that are the first ones of its turn."""
    return given_of(request.sampling_params.extra_args)
