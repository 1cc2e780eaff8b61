"""Stand-in for SGLang's compiled kernels: plain torch, slow, for tests on the CPU.

A kernel performs the operations and comparisons of SGLang's own in the same order, so that a bias of the original would
show here too. A kernel that a dense text model does not need raises when it is called, not when it is imported. Not
covered: quantisation, mixtures of experts, accelerators.
"""

import sys
from collections.abc import Callable
from typing import Any

from sgl_kernel.tree_kernels import (  # noqa: F401
    reconstruct_indices_from_tree_mask,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

__version__ = "0.0.0+cpu.stand.in"

_MODULES = "allreduce elementwise gemm grammar kvcacheio mamba memory moe sampling speculative utils"
for _module in _MODULES.split():
    sys.modules[f"{__name__}.{_module}"] = sys.modules[__name__]  # the original's modules hold the same kernels


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
