"""A pretended accelerator on a machine without one: its tensors compute on the CPU and mix with no other.

It goes by the name of PyTorch's ``meta`` device, the only one besides the CPU that every build knows. What CUDA
refuses, tensors of two devices in one operation and NumPy on the device's, it refuses; it is stricter where CUDA only
loses time: indices must lie on the device, and ``tolist`` needs ``cpu()`` first. Not covered: kernels of CUDA.
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
    """A tensor that says that it lies on ``DEVICE``, with its values in ``held``."""

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
    """``torch.tensor`` on the device, whose values PyTorch does not give to ``meta``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if func is torch.tensor else None
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """The device; only inside, and on this thread, are there tensors on it."""
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
