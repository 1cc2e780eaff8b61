"""What SGLang 0.5.23 lacks on the CPU."""

from __future__ import annotations

from sglang_on_cpu.tree_attention import forward_extend


def repair() -> None:
    """Register the repairs."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        forward_extend,
        HookType.AROUND,
    )
