"""One step of vLLM's sampling in a few kernels, for batches in which only temperature changes the logits.

The kernels run if every request is seeded or greedy and the device has kernels. Otherwise vLLM samples, with the
patches of ``seeded_draws``. Both ways sample the same tokens. Log-probabilities equal vLLM's ``processed_logprobs``
within rounding. Greedy tokens have their rank. Sampled tokens have rank 0, because computing the rank would take
another read of all logits.

Patches two methods of the model runner object: ``_sample``, and ``_dummy_sampler_run``, after which the kernels are
compiled. Checked with ``compat.CHECKED``; tests: ``test_fused_sampling.py``, ``test_fused_vllm.py``.
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
    """Return ``verify_kernel``, or ``None`` for a device type without kernels."""
    from turntree.agents.engines.drafting import race

    if race.kernel_on(kind) is None:
        return None
    return importlib.import_module("turntree.agents.engines.drafting.verify_kernel")


def install(runner: Any, rows: CurrentRows) -> None:
    """Make a model runner sample with the kernels where they apply."""
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
        # For a model without logits (an encoder alone), vLLM returns an empty tensor: there is nothing to compile.
        if kernels_on(runner.device.type) is not None and not isinstance(output, Tensor):
            with torch.inference_mode():
                warm_up(runner.model.compute_logits(hidden_states[:2]))
        return output

    runner._sample, runner._dummy_sampler_run = sample, dry


def warm_up(logits: Tensor) -> None:
    """Compile all kernels for logits of this dtype and width, so that no step compiles."""
    from turntree.agents.engines.drafting import race

    kernels = kernels_on(logits.device.type)
    if kernels is None:
        return
    kernels.warm_up(logits)
    # The steps that vLLM samples itself draw from float32 logits (`seeded_draws`).
    race.race_of_logits(logits[:1].float(), np.zeros(1, np.uint64), np.zeros(1, np.int64))


def _sampled(runner: Any, kernels: ModuleType, rows: BatchRows, logits: Tensor, drafted: Any) -> Any:
    # `planes`: tokens, log-probabilities and ranks (`StepLogprobs`), in one tensor.
    # Without drafts, each request samples at the last token of its span in the batch.
    sampled_at: dict[str, Any] = {"indices": runner.query_start_loc.gpu[1:], "shift": -1}
    if drafted is not None:
        ends, width = drafted.cu_num_sampled_tokens, drafted.max_spec_len + 1
        sampled_at = {"indices": drafted.logits_indices, "ends": ends, "width": width}
    planes = kernels.draw_rows(logits, rows.held, runner.positions, **sampled_at)
    if drafted is not None:
        planes = kernels.match_rows(planes, drafted.draft_token_ids, ends, width)
    outputs: Any = importlib.import_module("vllm.v1.outputs")
    logprobs = None
    if runner.input_batch.sampling_metadata.max_num_logprobs is not None:
        # Under asynchronous scheduling, vLLM starts the copy itself on its own stream.
        logprobs = StepLogprobs(planes.view(3, -1), sent=not runner.use_async_scheduling)
    tokens = planes[0].view(rows.held.shape[1], -1)
    return outputs.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)


class StepLogprobs:
    """Tokens, log-probabilities and ranks in one int32 tensor ``planes`` (3, positions), so that one copy moves all.

    Replaces vLLM's ``LogprobsTensors``. With ``sent``, the copy to the host starts at once: when vLLM has waited for
    the tokens, the log-probabilities have arrived too.
    """

    def __init__(self, planes: Tensor, *, sent: bool = False) -> None:
        self._planes = planes.to("cpu", non_blocking=True) if sent else planes
        self._copied = torch.cuda.Event() if sent and planes.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def to_cpu_nonblocking(self) -> StepLogprobs:
        return StepLogprobs(self._planes.to("cpu", non_blocking=True))

    def filter(self, mask: Any) -> StepLogprobs:
        return StepLogprobs(self._on_host()[:, torch.as_tensor(mask)])

    def tolists(self, cu_num_generated_tokens: list[int] | None = None) -> Any:
        """Return vLLM's ``LogprobsLists``."""
        # All planes are int32; the second plane holds the bits of float32 log-probabilities.
        tokens, logprobs, ranks = self._on_host().numpy()
        lists: Any = importlib.import_module("vllm.v1.outputs").LogprobsLists
        return lists(tokens[:, None], logprobs.view(np.float32)[:, None], ranks, cu_num_generated_tokens)

    def _on_host(self) -> Tensor:
        if self._copied is not None:
            self._copied.synchronize()
        return self._planes.cpu()
