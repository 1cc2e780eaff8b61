"""A whole step of vLLM's sampling by a few kernels, where every request is seeded or greedy and only its temperature
changes its logits.

Elsewhere vLLM samples as it does, with the changes of ``seeded_draws``; that is so on a device for which there are no
kernels, too. Tokens are the same on both ways. Log-probabilities are those of vLLM's ``processed_logprobs`` within
rounding. The rank of a token, which vLLM sends along, is given for greedy requests alone; for sampled ones it would
take another read of all logits, and it is 0.

Two places of vLLM are changed, on the object: ``_sample`` of the model runner, and its dry run of the sampler, after
which the kernels are compiled. Checked with the versions of ``seeded_draws``.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.vllm.drawing.batch_rows import BatchRows, CurrentRows


def kernels_on(kind: str) -> ModuleType | None:
    """``verify_kernel``; ``None`` on a kind of device for which it has no kernels."""
    from turntree.agents.engines.drafting import race

    if race.kernel_on(kind) is None:
        return None
    return importlib.import_module("turntree.agents.engines.drafting.verify_kernel")


def install(runner: Any, rows: CurrentRows) -> None:
    """Let a model runner sample by the kernels where it can.

    Args:
        runner: A ``GPUModelRunner`` of vLLM's V1 engine, or the CPU's.
    """
    original, dry_run = runner._sample, runner._dummy_sampler_run
    synthetic = getattr(getattr(runner, "rejection_sampler", None), "synthetic_mode", False)

    @functools.wraps(original)
    def sample(logits: Tensor, spec_decode_metadata: Any) -> Any:
        kernels, current = kernels_on(logits.device.type), rows.now()
        if kernels is None or not current.fused or synthetic:
            return original(logits, spec_decode_metadata)
        return _sampled(runner, kernels, current, logits, spec_decode_metadata)

    @functools.wraps(dry_run)
    def dry(hidden_states: Tensor) -> Any:
        output = dry_run(hidden_states)
        # A model that is an encoder alone has no logits; vLLM then returns an empty tensor.
        if kernels_on(runner.device.type) is not None and not isinstance(output, Tensor):
            with torch.inference_mode():
                warm_up(runner.model.compute_logits(hidden_states[:2]))
        return output

    runner._sample, runner._dummy_sampler_run = sample, dry


def warm_up(logits: Tensor) -> None:
    """Compile all kernels for logits like these, so that no step does.

    Args:
        logits: As the model gives them, of at least one row.
    """
    from turntree.agents.engines.drafting import race

    kernels = kernels_on(logits.device.type)
    if kernels is None:
        return
    kernels.warm_up(logits)
    # Where vLLM samples by itself, the race is that of logits in float32.
    race.race_of_logits(logits[:1].float(), np.zeros(1, np.uint64), np.zeros(1, np.int64))


def _sampled(runner: Any, kernels: ModuleType, rows: BatchRows, logits: Tensor, drafted: Any) -> Any:
    """vLLM's ``SamplerOutput`` of a step; ``drafted`` has its drafts."""
    place: dict[str, Any] = {"indices": runner.query_start_loc.gpu[1:], "shift": -1}
    if drafted is not None:
        ends, width = drafted.cu_num_sampled_tokens, drafted.max_spec_len + 1
        place = {"indices": drafted.logits_indices, "ends": ends, "width": width}
    found = kernels.draw_rows(logits, rows.held, runner.positions, **place)
    if drafted is not None:
        found = kernels.match_rows(found, drafted.draft_token_ids, ends, width)
    outputs: Any = importlib.import_module("vllm.v1.outputs")
    logprobs = None
    if runner.input_batch.sampling_metadata.max_num_logprobs is not None:
        logprobs = StepLogprobs(found.view(3, -1), sent=not runner.use_async_scheduling)
    tokens = found[0].view(rows.held.shape[1], -1)
    return outputs.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)


class StepLogprobs:
    """In place of vLLM's ``LogprobsTensors``: tokens, log-probabilities and ranks in one tensor, which one copy
    brings to the host.

    Args:
        planes: int32, shape (3, places), as ``verify_kernel`` returns it.
        sent: Whether the copy begins now. vLLM asks for the tokens first, and waits for both at once.
    """

    def __init__(self, planes: Tensor, *, sent: bool = False) -> None:
        self._planes = planes.to("cpu", non_blocking=True) if sent else planes
        self._copied = torch.cuda.Event() if sent and planes.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def to_cpu_nonblocking(self) -> StepLogprobs:
        """On the host once the current stream's work is done, for which the caller waits."""
        return StepLogprobs(self._planes.to("cpu", non_blocking=True))

    def filter(self, mask: Any) -> StepLogprobs:
        """Those places alone, on the host.

        Args:
            mask: bool, of the host, shape (places,).
        """
        return StepLogprobs(self._on_host()[:, torch.as_tensor(mask)])

    def tolists(self, cu_num_generated_tokens: list[int] | None = None) -> Any:
        """vLLM's ``LogprobsLists``.

        Args:
            cu_num_generated_tokens: Where each request's places begin, if it has several.
        """
        tokens, logprobs, ranks = self._on_host().numpy()
        lists: Any = importlib.import_module("vllm.v1.outputs").LogprobsLists
        return lists(tokens[:, None], logprobs.view(np.float32)[:, None], ranks, cu_num_generated_tokens)

    def _on_host(self) -> Tensor:
        if self._copied is not None:
            self._copied.synchronize()
        return self._planes.cpu()
