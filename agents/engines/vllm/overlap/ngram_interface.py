"""vLLM's contract of ``ngram_gpu``, the drafter that it lets run beside asynchronous scheduling, kept by turntree's.

``ngram_gpu`` returns drafts on the device and how many of them are valid; before the next step the runner waits for
these counts and trims the places that its scheduler had planned. Here the drafts come from the host, and that wait is
the one for turntree's drafting thread.

Changed in the module ``v1.worker.gpu_model_runner`` of vLLM 0.24: the class ``NgramProposerGPU``, which would compile a
search of its own, and the functions ``update_scheduler_for_invalid_drafts`` (the wait, and a loop of one device read a
request), ``update_ngram_gpu_tensors_incremental`` (copies of all prompts for that search) and
``update_num_computed_tokens_for_batch_change`` (compiled by ``torch.compile``, and again for half a second, while it
serves, whenever the number of requests is of another kind: it runs uncompiled). On the runner:
``num_tokens_no_spec_gpu`` becomes an array of the host, which vLLM changes element by element, ``_prepare_input_ids``
waits for drafts that the steps before it did not need, and ``execute_model`` and ``sample_tokens`` leave out what
belongs to drafts in steps without any.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Drafter(Protocol):
    """Where a model runner reports its steps; see ``drafter.OverlappedDrafter``."""

    def trim(self, scheduler_output: Any) -> None:
        """Take places without drafts out of the coming step."""

    def upload(self) -> None:
        """Have the drafts on the device."""

    def record(self, output: Any, width: int, read: int) -> None:
        """Take a step's output; the next step may draft up to ``width`` tokens a request."""


def announce(drafter: type) -> None:
    """Let vLLM make ``drafter`` where ``ngram_gpu`` is configured; before it makes its model runner."""
    module = _module()
    module.NgramProposerGPU = drafter
    module.update_ngram_gpu_tensors_incremental = lambda *_, **__: None
    correct = module.update_num_computed_tokens_for_batch_change
    module.update_num_computed_tokens_for_batch_change = getattr(correct, "_torchdynamo_orig_callable", correct)


def follow(runner: Any, drafter: Drafter) -> None:
    """Let a model runner trim its steps to the drafts of ``drafter``, and tell it of each step's tokens."""

    def trim(_event: Any, _counts: Any, scheduler_output: Any, _places: dict[str, int]) -> None:
        drafter.trim(scheduler_output)

    _module().update_scheduler_for_invalid_drafts = trim
    prepare = runner._prepare_input_ids

    def prepare_input_ids(*args: Any, **kwargs: Any) -> Any:
        drafter.upload()
        return prepare(*args, **kwargs)

    runner._prepare_input_ids = prepare_input_ids
    runner.num_tokens_no_spec_gpu = np.zeros(runner.max_num_reqs, np.int32)
    _Modes(runner, drafter)


class _Modes:
    """A model runner's two methods of a step, which run as without a drafter where no drafts are concerned."""

    def __init__(self, runner: Any, drafter: Drafter) -> None:
        self._runner = runner
        self._drafter = drafter
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        self._planned = False
        """Whether the scheduler planned drafts for the step that was executed last, whatever came of them."""
        runner.execute_model, runner.sample_tokens = self.execute_model, self.sample_tokens

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        before, self._planned = self._planned, bool(scheduler_output.scheduled_spec_decode_tokens)
        # A step after one with drafts corrects positions; one before some builds what the drafter is called with.
        if before or self._planned or scheduler_output.num_spec_tokens_to_schedule:
            return self._execute(scheduler_output, *args, **kwargs)
        return _plainly(self._runner, self._execute, scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        state = self._runner.execute_model_state
        if state is None:
            return self._sample(*args, **kwargs)
        step = state.scheduler_output
        width: int = step.num_spec_tokens_to_schedule
        if width or self._planned:
            output = self._sample(*args, **kwargs)
        else:
            output = _plainly(self._runner, self._sample, *args, **kwargs)
        places = sum(map(len, step.scheduled_spec_decode_tokens.values()))
        prompts = step.total_num_scheduled_tokens - places - len(step.num_scheduled_tokens)
        self._drafter.record(output, width, prompts)
        return output


def _plainly(runner: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of the runner as it is without a drafter; its request states are the same in both."""
    config, overlapped = runner.speculative_config, runner.use_async_spec_decode
    runner.speculative_config, runner.use_async_spec_decode = None, False
    try:
        return method(*args, **kwargs)
    finally:
        runner.speculative_config, runner.use_async_spec_decode = config, overlapped


def _module() -> Any:
    return importlib.import_module("vllm.v1.worker.gpu_model_runner")
