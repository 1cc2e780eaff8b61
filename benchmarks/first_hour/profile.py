from __future__ import annotations

import time
from collections.abc import Callable

import torch

from first_hour.setting import Row

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def profiled(run: Callable[[], int], device: str) -> Row:
    """Count what the steps of ``run`` launch; on the CPU, count the operators that PyTorch calls.

    Args:
        run: Returns how many steps it took. Profiling slows it down: do not use its time.
        device: Torch device.
    """
    from torch.profiler import ProfilerActivity, profile

    gpu = device != "cpu"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=kinds) as found:
        began = time.perf_counter()
        steps = max(1, run())
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    events = found.events() or []
    if not gpu:
        outer = sum(event.cpu_parent is None and event.name.startswith("aten::") for event in events)
        return {"operators a step": round(outer / steps, 1)}
    launches = sum(event.name.startswith(_LAUNCHES) for event in events)
    waits = sum(event.name.startswith(_WAITS) for event in events)
    busy = sum(event.self_device_time_total for event in found.key_averages()) / 1e6
    return {
        "launches a step": round(launches / steps, 1),
        "waits a step": round(waits / steps, 1),
        "device busy": round(busy / seconds, 3),
    }
