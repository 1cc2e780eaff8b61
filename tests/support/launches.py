"""Count the operations that launch work on an accelerator, and the copies that wait for it.

Views launch nothing. A copy waits for the device unless it is ``non_blocking``. A non-blocking copy to the host goes to
memory that PyTorch pins for it; a copy into an existing host tensor waits.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fused_draws
import numpy as np
import torch
from pretended_device import DEVICE, OnDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from turntree.agents.engines.drafting.race import race

_aten = torch.ops.aten
_COPIES = (_aten._to_copy.default, _aten.copy_.default)
_READS = (_aten._local_scalar_dense.default, _aten.nonzero.default)


class Launches(TorchDispatchMode):
    """Count while entered, inside ``pretended_device()``."""

    def __init__(self) -> None:
        super().__init__()
        self.launched = 0
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        before, after = _devices((args, kwargs)), _devices(made)
        if DEVICE not in before | after or _is_view(func):
            return made
        self.launched += 1
        crosses = len(before | after) > 1
        self.waits += func in _READS or (func in _COPIES and crosses and not _goes_on(func, args, kwargs or {}, after))
        return made


def one_launch(values: Any, seeds: Any, positions: Any, *, logits: bool) -> Tensor:
    held = values.held.softmax(-1) if logits else values.held
    return OnDevice(race(held, seeds.held.numpy().view(np.uint64), positions.held.numpy())) + 0


def _as_launched(by_plain_operations: Callable[..., Tensor], kernels: int) -> Callable[..., Tensor]:
    # As many tensors and launches as the real function has kernels.

    def launched(*args: Any, **kwargs: Any) -> Tensor:
        held = tree_map_only(OnDevice, lambda one: one.held, (args, kwargs))
        wanted = by_plain_operations(*held[0], **held[1])
        for _ in range(kernels):
            made = torch.empty(wanted.shape, dtype=wanted.dtype, device=DEVICE).copy_(OnDevice(wanted))
        return made

    return launched


#: replaces ``verify_kernel``
fused_kernels = SimpleNamespace(
    draw_rows=_as_launched(fused_draws.draw_rows, 2), match_rows=_as_launched(fused_draws.match_rows, 1)
)


def _goes_on(func: Any, args: Any, kwargs: Any, after: set[torch.device]) -> bool:
    asked = kwargs.get("non_blocking", func is _aten.copy_.default and len(args) > 2 and args[2])
    return bool(asked) and (after == {DEVICE} or func is _aten._to_copy.default)


def _devices(values: Any) -> set[torch.device]:
    return {one.device for one in tree_leaves(values) if isinstance(one, Tensor)}


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)
