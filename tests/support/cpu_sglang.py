"""Starts SGLang on a machine without an accelerator, with the stand-ins of ``cpu_kernels`` for its kernels."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from machine_speed import patience
from tables import table

STAND_INS = Path(__file__).resolve().parent / "cpu_kernels"

CPU_ARGS: dict[str, Any] = table(__file__, "cpu_args")
"""Arguments of an engine of float32 that plans for no more than a test needs."""


def beside(*given: str) -> dict[str, Any]:
    """``CPU_ARGS`` without those that are given elsewhere."""
    return {name: value for name, value in CPU_ARGS.items() if name not in given}


def prepare(settings: dict[str, Any] | None = None) -> None:
    """Make this process, and the engine's that it will start, find the stand-ins, and turntree's plugin its
    ``settings``. Call it before importing SGLang."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["SGLANG_NATIVE_MOVE_KV_CACHE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CXX", "c++ -include cstddef")  # its n-gram corpus names size_t before any header that has it
    os.environ["TURNTREE_SGLANG"] = json.dumps(settings or {})
    if str(STAND_INS) not in sys.path:
        sys.path.insert(0, str(STAND_INS))
        paths = [str(STAND_INS), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def flush(engine: Any, *, seconds: float = 20.0) -> None:
    """Empty the cache once the last request has left: straight after ``generate`` SGLang may still hold it."""
    deadline = time.monotonic() + patience(seconds)
    while True:
        answer = engine.flush_cache()
        if getattr(answer, "success", answer):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the engine did not become idle within {seconds} s")
        time.sleep(0.05)
