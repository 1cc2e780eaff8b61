"""The scheduler of asynchronous steps with drafts: it decides whether a step has drafts, and how long they may be.

The scheduler can time each step in every process layout, so the switch between steps with and without drafts is here.
vLLM's own scheduler and worker handle steps without drafts (``ngram_interface``).
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
        self._undrafted: set[str] = set()  #: requests whose drafts vLLM would need on the host at once
        self._ended: float | None = None  #: end of the last step, monotonic seconds; ``None`` once no request is left

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if _needs_tokens(request):
            self._undrafted.add(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        # vLLM 0.28 gives draft positions to a joining request with one token left. Nothing is drafted for it, and the
        # worker could not tell how many of these positions its number of computed tokens includes.
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
        scheduler_output.num_spec_tokens_to_schedule = width  # for the next step; the worker drafts as many
        super()._update_after_schedule(scheduler_output)
        if len(self.running) > rows:
            # The worker drops a request without a token in this step; it joins again later, as in `schedule`.
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
    # Penalties, bad words and grammars are computed on the host from the tokens before, drafts included.
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
