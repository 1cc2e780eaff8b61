"""A pretended accelerator: its tensors compute on the CPU and cannot be mixed with CPU tensors.

It uses PyTorch's ``meta`` device, the only other device that every build knows. Like CUDA it refuses tensors of two
devices in one operation and NumPy on device tensors. It is stricter where CUDA only loses time: indices must be on
the device, and ``tolist`` needs ``cpu()`` first. CUDA kernels are not covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
CPU = torch.device("cpu")
_aten = torch.ops.aten


class OnDevice(Tensor):
    """A tensor that reports ``DEVICE`` and keeps its values in ``held``."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, held.shape, **layout, dtype=held.dtype, device=DEVICE)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Values(TorchFunctionMode):
    # ``torch.tensor`` drops its values on ``meta``.

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if func is torch.tensor else None
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Yield the device; device tensors exist only inside the block and on this thread."""
    with _Operations(), _Values():
        yield DEVICE


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    ours = [one for one in tensors if isinstance(one, OnDevice)]
    copies = func in (_aten.copy_.default, _aten._to_copy.default)
    if ours and not copies and any(one.dim() for one in tensors if not isinstance(one, OnDevice)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and {CPU}: {func}")
    if ours and func is _aten._fused_sdp_choice.default:
        return 0  # the formula: the kernels of a device cannot be run here
    target = args[0].device if func is _aten.copy_.default else DEVICE if ours else CPU
    device = kwargs.get("device") or target
    held = tree_map_only(OnDevice, lambda one: one.held, (args, kwargs))
    if "device" in kwargs:
        held[1]["device"] = CPU
    with torch.inference_mode(False), torch.no_grad():  # a view of a weight shares its count of versions
        out = func(*held[0], **held[1])
        if torch.device(device) != DEVICE:
            return out
        known = {id(one.held): one for one in ours}
        return tree_map_only(Tensor, lambda one: known[id(one)] if id(one) in known else OnDevice(one), out)
