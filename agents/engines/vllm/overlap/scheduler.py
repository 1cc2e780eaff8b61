"""The scheduler of asynchronous steps: it decides whether a step has drafts, and how long the drafts may be.

Drafts are switched off while they cost more time than they save (``DraftSwitch``). This needs the time of every step,
which the scheduler can measure however vLLM splits its work into processes. vLLM handles steps without drafts as if it
had no drafter (``ngram_interface``).
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from turntree.agents.engines.drafting.step_bound import draft_length
from turntree.agents.engines.request_wire import is_reverified
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree.budget.draft_switch import DraftSwitch


class DraftScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is untyped here
    """vLLM's ``AsyncScheduler`` that plans draft positions where they save time."""

    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = DrafterSettings.from_additional_config(self.vllm_config.additional_config)
        self._longest: int = self.num_spec_tokens if settings.enabled else 0
        self._switch = DraftSwitch() if settings.adaptive else None
        self._undrafted: set[str] = set()  #: requests whose draft tokens vLLM would need at once on the host
        self._ended: float | None = None  #: end of the last step, monotonic seconds; ``None`` once no request is left

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if _needs_tokens(request):
            self._undrafted.add(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        # vLLM 0.28 plans draft positions for a joining request with one token left. Nothing is drafted for the request,
        # and the worker could not tell how many of these positions are in the request's number of computed tokens.
        longest, self.num_spec_tokens = self.num_spec_tokens, 0
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.num_spec_tokens = longest

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        rows = len(scheduler_output.num_scheduled_tokens)
        width = draft_length(rows, self._longest)
        if width and self._switch is not None and not self._switch.wants(rows, now=time.perf_counter()):
            width = 0
        scheduler_output.num_spec_tokens_to_schedule = width  # for the next step; the worker drafts up to this length
        super()._update_after_schedule(scheduler_output)
        if len(self.running) > rows:
            # The worker drops a request that has no token in this step. The request joins again later: plan no drafts.
            for request in self.running:
                if request.request_id not in scheduler_output.num_scheduled_tokens:
                    request.spec_token_ids = []
        if width and self._undrafted:
            for name in self._undrafted.intersection(scheduler_output.num_scheduled_tokens):
                self.requests[name].spec_token_ids = []

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._switch is not None:
            self._learn(self._switch, scheduler_output, outputs)
        if self._undrafted:
            self._undrafted.intersection_update(self.requests)
        return outputs

    def _learn(self, switch: DraftSwitch, scheduler_output: Any, outputs: Any) -> None:
        now, before = time.perf_counter(), self._ended
        self._ended = now if self.has_unfinished_requests() else None
        rows = len(scheduler_output.num_scheduled_tokens)
        if before is None or not rows:
            return
        drafts = scheduler_output.scheduled_spec_decode_tokens
        draft_tokens = sum(map(len, drafts.values()))
        switch.observe(
            rows=rows,
            emitted=sum(len(output.new_token_ids) for client in outputs.values() for output in client.outputs),
            seconds=now - before,
            drafted=bool(drafts),
            prompt_tokens=scheduler_output.total_num_scheduled_tokens - draft_tokens - rows,
        )


def _needs_tokens(request: Any) -> bool:
    # vLLM computes penalties, bad words and grammars on the host from all earlier tokens, including draft tokens.
    parameters = request.sampling_params
    return (
        parameters is None
        or request.use_structured_output
        or parameters.presence_penalty != 0
        or parameters.frequency_penalty != 0
        or parameters.repetition_penalty != 1
        or bool(parameters.bad_words)
        or is_reverified(parameters.extra_args)
    )
