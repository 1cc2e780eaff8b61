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


def beside(*given: str) -> dict[str, Any]:
    return {name: value for name, value in CPU_ARGS.items() if name not in given}


def prepare(settings: dict[str, Any] | None = None) -> None:
    """Let this process and the engine it starts find the stand-ins and turntree's plugin its ``settings``.

    Call this before importing SGLang.
    """
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
    """Empty the cache once SGLang is idle: right after ``generate`` it may still hold the last request."""
    deadline = time.monotonic() + patience(seconds)
    while True:
        answer = engine.flush_cache()
        if getattr(answer, "success", answer):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the engine did not become idle within {seconds} s")
        time.sleep(0.05)
