"""vLLM's CPU build with asynchronous scheduling: scheduler, runner and drafter are the GPU's.

Streams and events do nothing, since every CPU operation is complete when it returns.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny_vllm import MEMORY, in_this_process

from turntree.agents.engines.vllm.config import on_accelerator
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

#: at most: requests per step, tokens per request, tokens per draft
ROWS, CONTEXT, LONGEST = 8, 256, 6
_BLOCKS = 14  #: of 32 tokens: too few for ``ROWS`` requests, so that some are preempted
_CHUNK = 96  #: tokens per step, at most


class _Passed:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def query(self) -> bool:
        return True


def overlap(patch: pytest.MonkeyPatch) -> None:
    """Make engines that start from now on schedule asynchronously."""
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    checked, zeros = CpuPlatform.check_and_update_config, torch.zeros

    def check(_: Any, config: Any) -> None:
        checked(config)
        config.scheduler_config.async_scheduling = True
        config.parallel_config.distributed_executor_backend = "uni"

    def copied(self: Any, tokens: Any, counts: Any) -> None:
        self.valid_sampled_token_count_cpu[: len(counts)].copy_(counts)
        self.valid_sampled_token_count_gpu = counts
        self.input_batch.prev_sampled_token_ids = tokens.unsqueeze(1)

    patch.setattr(CpuPlatform, "check_and_update_config", classmethod(check))
    patch.setattr(CPUModelRunner, "_copy_valid_sampled_token_count", copied)
    patch.setattr("vllm.v1.worker.cpu_model_runner._torch_cuda_wrapper", contextlib.nullcontext)
    for name in ("Event", "cuda.Event", "cuda.Stream"):
        patch.setattr(f"torch.{name}", _Passed)
    patch.setattr(torch.cuda, "current_stream", _Passed)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    patch.setattr(torch, "zeros", lambda *given, pin_memory=False, **named: zeros(*given, **named))


def engine_arguments(folder: Path, *, drafts: bool, settings: DrafterSettings | None = None) -> dict[str, Any]:
    """Return vLLM's arguments for a saved model, with turntree's drafter as on an accelerator or without."""
    given: dict[str, Any] = MEMORY | {
        "model": str(folder),
        "dtype": "float32",
        "seed": 0,
        "max_num_seqs": ROWS,
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": _CHUNK,
        "num_gpu_blocks_override": _BLOCKS,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": -1,
    }
    if drafts:
        settings = settings or DrafterSettings(min_probability=0.02, adaptive=False)
        given |= {"speculative_config": speculative_config(LONGEST)}
        given |= {"additional_config": settings.to_additional_config()}
        given = on_accelerator(given, rows=ROWS, ranks=1)
        del given["compilation_config"]
    return given


@contextlib.contextmanager
def vllm_here() -> Iterator[pytest.MonkeyPatch]:
    """Set vLLM's environment for in-process engines that use the GPU's first model runner."""
    with in_this_process(VLLM_USE_V2_MODEL_RUNNER="0") as patch:
        yield patch


def scheduler_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def runner_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


@dataclass
class ScriptedSwitch:
    """Replace ``DraftSwitch``: switch every few steps, or never."""

    every: int  #: steps; 0 for never
    on: bool = True
    asked: int = 0
    observed: list[dict[str, Any]] = field(default_factory=list)

    def wants(self, rows: int, *, now: float) -> bool:
        self.asked += 1
        if self.every and self.asked % self.every == 0:
            self.on = not self.on
        return self.on

    def observe(self, **step: Any) -> None:
        self.observed.append(step)


class Asked(NamedTuple):
    at: int  #: step before which the request arrives
    name: str
    prompt: list[int]
    sampling: dict[str, Any]  #: fields of vLLM's ``SamplingParams``
    aborted: int | None = None  #: steps after which an unfinished request is aborted


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    reason: str


def play(llm: Any, requests: Sequence[Asked]) -> tuple[dict[str, Answer], int]:
    """Return the answers to requests that come and go, and the number of steps."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    waiting, answers, ends, step = sorted(requests), {}, dict[str, int](), 0
    fixed = {"logprobs": 0, "flat_logprobs": True, "detokenize": False, "output_kind": RequestOutputKind.CUMULATIVE}
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0].at <= step:
            one = waiting.pop(0)
            sampling = SamplingParams(**one.sampling, **fixed)
            engine.add_request(one.name, {"prompt_token_ids": one.prompt}, sampling)
            if one.aborted is not None:
                ends[one.name] = step + one.aborted
        for name in [name for name, end in ends.items() if end <= step]:
            del ends[name]
            if name not in answers or not answers[name].reason:
                engine.abort_request([name])
        for output in engine.step():
            (sampled,) = output.outputs
            reason = sampled.finish_reason or ""
            answers[output.request_id] = Answer(list(sampled.token_ids), list(sampled.logprobs.logprobs), reason)
        step += 1
    return answers, step
