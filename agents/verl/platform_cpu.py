"""The CPU as a verl platform, for machines without an accelerator.

verl queries its platform for everything that depends on the device. verl's resource pools count only GPUs, so Ray is
started with one fake GPU per worker (``num_gpus``). Workarounds for verl's GPU-only code are in ``patches``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase


class _CpuDeviceModule(types.ModuleType):
    """The part of the ``torch.cuda`` namespace that verl calls; anything else comes from ``torch.cpu``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        """Return ``False``, which turns verl's device-memory reports into no-ops."""
        return False

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device: Any) -> None:
        """Nothing to select."""

    def synchronize(self, device: Any = None) -> None:
        """Nothing runs behind the caller's back."""

    def empty_cache(self) -> None:
        """No caching allocator."""

    def ipc_collect(self) -> None:
        """No shared device memory."""

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """No peak is kept."""

    def memory_allocated(self, device: Any = None) -> int:
        """Resident memory of this process, in bytes."""
        return int(psutil.Process().memory_info().rss)

    max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Available and total memory of the machine, in bytes."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device_name(self, device: Any = None) -> str:
        """The name verl prints."""
        return "cpu"

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """State of torch's generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Restore torch's generator."""
        torch.set_rng_state(state)


class PlatformCPU(PlatformBase):
    """The CPU, with gloo between processes."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _CpuDeviceModule("turntree_cpu_device")

    def is_available(self) -> bool:
        """Return ``True``."""
        return True

    def current_device(self) -> torch.device:  # type: ignore[override]
        """Return a device rather than an index: verl passes it to ``tensor.to``."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to select."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs behind the caller's back."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No caching allocator."""

    def empty_cache(self) -> None:
        """No caching allocator."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Gloo, the collective library that needs no accelerator."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for the fake GPUs; nothing reads it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler marks."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Return the resource that verl's pools count; Ray is started with fake GPUs."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """No variable to protect."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share."""
        return False

    def cudart(self) -> Any:
        """No CUDA runtime."""
        return None
