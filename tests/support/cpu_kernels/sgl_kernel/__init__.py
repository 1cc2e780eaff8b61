"""Stand-in for SGLang's compiled kernels where no build of them runs: plain torch, slow, for tests on the CPU.

Invariant: a kernel does what SGLang's own does, in the same order and with the same comparisons, so that a bias of the
original would show here too. A kernel that nobody needs on the path of a dense text model raises when it is called,
not when it is imported. Not covered: quantisation, mixtures of experts, anything on an accelerator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from sgl_kernel.cache_locations import (  # noqa: F401  (SGLang's to import)
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.hashing import murmur_hash32
from sgl_kernel.tree_kernels import (  # noqa: F401
    reconstruct_indices_from_tree_mask,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

__version__ = "0.0.0+cpu.stand.in"

verify_tree_greedy_cpu = verify_tree_greedy

_MODULES = "allreduce elementwise gemm grammar kvcacheio mamba memory moe sampling speculative utils"
for _module in _MODULES.split():
    sys.modules[f"{__name__}.{_module}"] = sys.modules[__name__]  # the original's modules hold the same kernels

_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")
_LIBRARY.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor cols) -> Tensor")
_LIBRARY.impl("murmur_hash32_cpu", murmur_hash32, "CPU")


def missing(name: str) -> Callable[..., Any]:
    def kernel(*_: object, **__: object) -> Any:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no stand-in for the CPU; write one in tests/support/cpu_kernels"
        )

    kernel.__name__ = name
    return kernel


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return missing(name)
