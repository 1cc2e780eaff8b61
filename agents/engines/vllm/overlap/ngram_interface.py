"""Run turntree's drafter in place of ``ngram_gpu``, vLLM's drafter for asynchronous scheduling.

``ngram_gpu`` returns drafts, and the number of valid draft tokens of each request, on the device. Before the next step,
vLLM's model runner waits for these numbers and removes planned draft positions that have no valid token. turntree's
drafts come from the host, so the runner waits for turntree's drafting thread instead.

Names patched in the module ``v1.worker.gpu_model_runner`` (vLLM 0.24 and 0.28), and what vLLM's originals would do:

- ``NgramProposerGPU``: compile its own search.
- ``update_scheduler_for_invalid_drafts``: wait, then read the device once per request.
- ``update_ngram_gpu_tensors_incremental``: copy all prompts for the search.
- ``update_num_computed_tokens_for_batch_change``: recompile with ``torch.compile`` for half a second while serving,
  whenever the number of requests needs another specialisation. turntree runs this function uncompiled.

Patches of the model runner: ``num_tokens_no_spec_gpu`` becomes a host array, because vLLM writes it element by element;
``_prepare_input_ids`` waits for drafts; ``execute_model`` and ``sample_tokens`` skip the work for drafts in steps
without any. Tests: ``test_ngram_interface.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Drafter(Protocol):
    """The methods of ``OverlappedDrafter`` that a model runner calls."""

    def trim(self, scheduler_output: Any) -> None: ...

    def upload(self) -> None: ...

    def record(self, output: Any, width: int, read: int) -> None: ...


def announce(drafter: type) -> None:
    """Make vLLM create ``drafter`` where ``ngram_gpu`` is configured. Call it before vLLM creates its model runner."""
    module = _module()
    module.NgramProposerGPU = drafter
    module.update_ngram_gpu_tensors_incremental = lambda *_, **__: None
    correct = module.update_num_computed_tokens_for_batch_change
    module.update_num_computed_tokens_for_batch_change = getattr(correct, "_torchdynamo_orig_callable", correct)


def follow(runner: Any, drafter: Drafter) -> None:
    """Make a model runner trim its steps to the drafts of ``drafter`` and report each step to it."""

    def trim(_event: Any, _counts: Any, scheduler_output: Any, _rows: dict[str, int]) -> None:
        drafter.trim(scheduler_output)

    _module().update_scheduler_for_invalid_drafts = trim
    prepare = runner._prepare_input_ids

    def prepare_input_ids(*args: Any, **kwargs: Any) -> Any:
        drafter.upload()
        return prepare(*args, **kwargs)

    runner._prepare_input_ids = prepare_input_ids
    runner.num_tokens_no_spec_gpu = np.zeros(runner.max_num_reqs, np.int32)
    _StepPatches(runner, drafter)


class _StepPatches:
    def __init__(self, runner: Any, drafter: Drafter) -> None:
        self._runner = runner
        self._drafter = drafter
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        self._planned = False  #: whether the scheduler planned drafts for the last executed step
        runner.execute_model, runner.sample_tokens = self.execute_model, self.sample_tokens

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        before, self._planned = self._planned, bool(scheduler_output.scheduled_spec_decode_tokens)
        # After a step with drafts, vLLM corrects positions; before such a step, it builds the drafter's arguments.
        if before or self._planned or scheduler_output.num_spec_tokens_to_schedule:
            return self._execute(scheduler_output, *args, **kwargs)
        return _without_drafts(self._runner, self._execute, scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        state = self._runner.execute_model_state
        if state is None:
            return self._sample(*args, **kwargs)
        step = state.scheduler_output
        width: int = step.num_spec_tokens_to_schedule
        if width or self._planned:
            output = self._sample(*args, **kwargs)
        else:
            output = _without_drafts(self._runner, self._sample, *args, **kwargs)
        drafted = sum(map(len, step.scheduled_spec_decode_tokens.values()))
        prompt_tokens = step.total_num_scheduled_tokens - drafted - len(step.num_scheduled_tokens)
        self._drafter.record(output, width, prompt_tokens)
        return output


def _without_drafts(runner: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Without these two settings, vLLM skips its work for drafts, which a step without drafts does not need.
    config, overlapped = runner.speculative_config, runner.use_async_spec_decode
    runner.speculative_config, runner.use_async_spec_decode = None, False
    try:
        return method(*args, **kwargs)
    finally:
        runner.speculative_config, runner.use_async_spec_decode = config, overlapped


def _module() -> Any:
    return importlib.import_module("vllm.v1.worker.gpu_model_runner")
