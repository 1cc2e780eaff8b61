"""The scheduler of asynchronous steps with drafts: how long they may be, and whether a step has any.

It sees what each step took in every layout of processes, so the switch is here. A step without drafts is planned as the
stock scheduler plans it, and the worker then runs it as the stock worker does (``modes``).
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
    """vLLM's ``AsyncScheduler`` that plans places for drafts where they pay."""

    num_spec_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = DrafterSettings.from_additional_config(self.vllm_config.additional_config)
        self._longest: int = self.num_spec_tokens if settings.enabled else 0
        self._switch = DraftSwitch() if settings.adaptive else None
        self._undrafted: set[str] = set()
        """Requests that vLLM cannot draft for without waiting: it would need the drafts on the host at once."""
        self._ended: float | None = None
        """When the last step ended, on a monotonic clock; ``None`` once nothing was left to do."""

    def add_request(self, request: Any) -> None:
        """As vLLM's."""
        super().add_request(request)
        if _needs_tokens(request):
            self._undrafted.add(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's, without the places that 0.28 gives a request that joins with one token left: nothing is drafted
        for it, and the worker would not know how many of them its number of computed tokens counts."""
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
        scheduler_output.num_spec_tokens_to_schedule = width  # of the next step; the worker drafts as many
        super()._update_after_schedule(scheduler_output)
        if len(self.running) > rows:
            # The worker lets go of a request that has no token in a step: it joins again, as above.
            for request in self.running:
                if request.request_id not in scheduler_output.num_scheduled_tokens:
                    request.spec_token_ids = []
        if width and self._undrafted:
            for name in self._undrafted.intersection(scheduler_output.num_scheduled_tokens):
                self.requests[name].spec_token_ids = []

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM's."""
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
        places = sum(map(len, drafts.values()))
        switch.observe(
            rows=rows,
            emitted=sum(len(one.new_token_ids) for of in outputs.values() for one in of.outputs),
            seconds=now - before,
            drafted=bool(drafts),
            prompt_tokens=scheduler_output.total_num_scheduled_tokens - places - rows,
        )


def _needs_tokens(request: Any) -> bool:
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
