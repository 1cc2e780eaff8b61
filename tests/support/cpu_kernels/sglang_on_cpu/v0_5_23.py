"""What SGLang 0.5.23 lacks on the CPU."""

from __future__ import annotations

from typing import Any

from sgl_kernel import tree_speculative_sampling_target_only

from sglang_on_cpu.tree_attention import forward_extend


def repair() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        forward_extend,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.speculative.eagle_utils._verify_uses_greedy", _only_where_greedy, HookType.REPLACE
    )


def _only_where_greedy(*, is_all_greedy: bool, **_: Any) -> bool:
    """SGLang's own drafts are verified as on CUDA; without the kernel it takes the likeliest at any temperature."""
    from sglang.srt.speculative import eagle_utils

    eagle_utils.tree_speculative_sampling_target_only = tree_speculative_sampling_target_only
    return is_all_greedy
