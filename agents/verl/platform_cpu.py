"""The CPU as a verl platform, for machines without an accelerator.

verl calls its platform object for everything that depends on the device. Ray is told to pretend one GPU per worker
(``num_gpus``), because verl's resource pools count only GPUs. Changes to verl's own code are in ``patches``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    pass


class _CpuDeviceModule(types.ModuleType):
    # Stands in for ``torch.cuda``: the functions that verl calls; all other names come from ``torch.cpu``.
    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return False  # turns verl's reports of device memory into no-ops

    def current_device(self) -> torch.device:
        return torch.device("cpu")  # not an index: verl passes the result to ``tensor.to``

    def device_count(self) -> int:
        return 1

    # No-ops: the CPU is one device without asynchronous kernels, caching allocator or shared device memory.
    set_device = synchronize = empty_cache = ipc_collect = reset_peak_memory_stats = _nothing

    def memory_allocated(self, device: Any = None) -> int:
        """Return the resident memory of this process, bytes."""
        return int(psutil.Process().memory_info().rss)

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return the machine's available and total memory, bytes."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class PlatformCPU(PlatformBase):
    """The CPU, with gloo between processes."""

    device_name = vendor_name = "cpu"
    device_module = _CpuDeviceModule("turntree_cpu_device")
    # No-ops: the CPU is one device without asynchronous kernels, caching allocator, device profiler or CUDA runtime.
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")  # not an index: verl passes the result to ``tensor.to``

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"  # Ray sets this variable for the pretended GPUs; no code on the CPU reads it

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"  # the resource that verl's pools count; Ray pretends to have GPUs

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
