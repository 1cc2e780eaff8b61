from collections.abc import Callable
from typing import Any

import torch

from sglang_on_cpu.tree_attention import forward_extend


class Launched:
    """Call a function like a Triton kernel: ``kernel[grid](...)``."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function


class Unpinned:
    """``torch``, but without pinned memory, which PyTorch refuses without an accelerator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def tensor(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.tensor(*arguments, **options)


def assign_req_to_token_pool(rows, req_to_token, starts, ends, slots, *_: Any) -> None:
    # The last argument is a launch size of the Triton kernel.
    begin = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[row, start:end] = slots[begin : begin + end - start].to(req_to_token.dtype)
        begin += end - start


def repair() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        forward_extend,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup", _no_warm_up, HookType.REPLACE
    )
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.maybe_init_draft_worker", _kernels, HookType.BEFORE)
    HookRegistry.register(
        "sglang.srt.server_args.ServerArgs._handle_speculative_decoding", _as_if_cuda, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.speculative.ngram_worker.NGRAMWorker._init_preallocated_tensors", _on_cpu, HookType.BEFORE
    )


def _no_warm_up(pool: Any) -> None:
    # The original runs a Triton kernel; SGLANG_NATIVE_MOVE_KV_CACHE moves without it.
    pool._kv_copy_config = None


def _on_cpu(worker: Any) -> None:
    # SGLang's n-gram worker allocates its full mask on CUDA; the mask of the trees suffices.
    from sglang.srt.speculative import ngram_worker

    worker.device = "cpu"
    ngram_worker.USE_FULL_MASK = False


def _kernels(*arguments: Any, **options: Any) -> None:
    # SGLang imports these kernels only on CUDA. The torch proxy is set in one module alone:
    # transformers calls ``torch.tensor`` itself while a model is built.
    import sgl_kernel
    from sglang.srt.layers import logits_processor
    from sglang.srt.speculative import ngram_info

    logits_processor.torch = Unpinned()

    ngram_info.assign_req_to_token_pool = Launched(assign_req_to_token_pool)
    ngram_info.TREE_SPEC_KERNEL_AVAILABLE = True
    for name in (
        "verify_tree_greedy",
        "tree_speculative_sampling_target_only",
        "top_k_renorm_prob",
        "top_p_renorm_prob",
    ):
        setattr(ngram_info, name, getattr(sgl_kernel, name))


def _as_if_cuda(original: Callable[[Any], None], server_args: Any) -> None:
    # SGLang refuses its own NGRAM off CUDA before it checks anything else.
    device, server_args.device = server_args.device, "cuda"
    try:
        original(server_args)
    finally:
        server_args.device = device
