"""turntree's drafter beside asynchronous scheduling: the store is asked while vLLM schedules the next step.

A step's tokens reach the host by the copy that vLLM makes for its scheduler anyway. The drafting thread waits for it,
commits them and drafts; before the next step's inputs are made ``trim`` waits for that thread, uploads the drafts, and
gives back the places that have none. Steps without drafts are only noted, and recorded several at a time.

A turn that ends in a step still takes part in the next one: tokens after its end are dropped (``LiveTurn.own``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.overlap import contract

_HELD = 32
"""Steps without drafts after which they are recorded."""


class _Step(NamedTuple):
    """Tokens of one step, on their way to the host."""

    ids: list[str]
    """Requests, shape (rows,)."""
    tokens: Tensor
    """-1 after the last of each row, shape (rows, most); filled once ``copied`` has passed."""
    copied: Any
    """CUDA event."""
    reading: list[int]
    """Rows that are still in the middle of their prompt; what they sampled counts for nothing."""


class OverlappedDrafter(ForestDrafter):
    """``ForestDrafter`` by the contract of vLLM's ``NgramProposerGPU``."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        """Read the settings; vLLM calls this."""
        super().__init__(vllm_config)
        rows, pinned = vllm_config.scheduler_config.max_num_seqs, device.type == "cuda"
        self._on_host = torch.zeros((rows, self._deepest), dtype=torch.int32, pin_memory=pinned)
        self._on_device = self._on_host.to(device)
        self._counts = torch.zeros(rows, dtype=torch.int32).numpy()
        """Drafts of each place of the last step."""
        self._held: list[_Step] = []

    def bind(self, runner: Any, *, leads: bool = True) -> None:
        """As ``ForestDrafter.bind``."""
        super().bind(runner, leads=leads)
        contract.follow(runner, self)

    def update_token_ids_ngram(
        self, sampled: Tensor, batch: Any, _tokens: Any, _ends: Any, discarded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The last token of each request, how many it sampled, and all of them, -1 after the last; on the device."""
        kept = sampled.masked_fill(discarded[: len(sampled), None], -1)
        counts = (kept >= 0).sum(1, dtype=torch.int32)
        last = kept.gather(1, (counts - 1).clamp_(min=0).long()[:, None])[:, 0]
        return last, counts, kept

    def propose(self, *args: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """Where the next step's drafts will be on the device, shape (rows, longest); filled by ``trim``."""
        rows = len(args[-1])
        return self._on_device[:rows], None

    def record(self, output: Any, width: int) -> None:
        """Take a step's output, and begin with the drafts of the next one.

        Args:
            output: vLLM's ``AsyncGPUModelRunnerOutput``.
            width: Greatest length of the next step's drafts, 0 for none.
        """
        ids = output._model_runner_output.req_ids
        changed = not self._held or ids != self._held[-1].ids
        self._held.append(
            _Step(ids, output.sampled_token_ids_cpu, output.async_copy_ready_event, output._invalid_req_indices)
        )
        if width == 0 and not changed and len(self._held) < _HELD:
            return
        self.settle()
        held, self._held = self._held, []
        with self._session.timed() as began:
            self._sweep()
            self._session.mark_step(began, went_on=bool(self._rows))
            new = self._open_new(ids)
        self._drafting = self._thread.submit(self._catch_up, began, held, new, width)

    def trim(self, scheduler_output: Any, places: dict[str, int]) -> None:
        """Upload the drafts, once they are made, and take the places of a step that have none out of it.

        Args:
            scheduler_output: The runner's own copy of vLLM's ``SchedulerOutput`` of the coming step.
            places: Index in the last step's batch of each request.
        """
        planned = scheduler_output.scheduled_spec_decode_tokens
        if not planned:
            return
        self.settle()
        self._on_device.copy_(self._on_host, non_blocking=True)
        counts = self._counts.tolist()
        scheduled, spare = scheduler_output.num_scheduled_tokens, 0
        for name, tokens in list(planned.items()):
            place = places.get(name)
            drafted = counts[place] if place is not None else 0
            if drafted < len(tokens):
                spare += len(tokens) - drafted
                scheduled[name] -= len(tokens) - drafted
                if drafted:
                    planned[name] = tokens[:drafted]
                else:
                    del planned[name]
        scheduler_output.total_num_scheduled_tokens -= spare

    def _open_new(self, ids: list[str]) -> list[Any]:
        new = []
        for name in ids:
            request = self._runner.requests.get(name)
            if name in self._rows or request is None or request.prompt_token_ids is None:
                continue
            row = self._rows[name] = self._open(request)
            new.append(row)
        return new

    def _catch_up(self, began: float, held: list[_Step], new: list[Any], width: int) -> None:
        with self._session.timed(waits=False):
            self._begin(new)
            for step in held:
                step.copied.synchronize()
                self.counts.steps += 1
                rows, said, places = [], [], []
                for place, (name, tokens) in enumerate(zip(step.ids, step.tokens.tolist(), strict=True)):
                    row = self._rows.get(name)
                    if row is None or place in step.reading or row.handle is None:
                        continue
                    sampled = [token for token in tokens if token >= 0]
                    lead = row.request.prompt_token_ids[row.prompt :] if row.committed == 0 else []
                    mine = row.own([*lead, *sampled])
                    row.verified(mine, self.counts.steps)
                    rows.append(row)
                    said.append(mine)
                    places.append(place)
                self._commit(rows, said)
                self.counts.rows += len(rows)
            self._counts[:] = 0
            if width:
                proposed: list[list[int]] = [[] for _ in held[-1].ids]
                live = [(place, row) for place, row in zip(places, rows, strict=True) if row.handle is not None]
                self._draft([row for _, row in live], [place for place, _ in live], proposed)
                for place, draft in enumerate(proposed):
                    draft = draft[:width]
                    self._counts[place] = len(draft)
                    self._on_host[place, : len(draft)] = torch.tensor(draft, dtype=torch.int32)
