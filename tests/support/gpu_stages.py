"""The stages of ``benchmarks/gpu.py`` that need an engine, in the smallest size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark_modules import BENCHMARKS, benchmark_module
from interpreter import python


def check_stages(engine: str, folder: Path) -> None:
    names = [stage.name for stage in benchmark_module("first_hour.stages").STAGES if engine in stage.needs]
    words = ("--small", "--device", "cpu", "--out", str(folder), "--only", *names)
    done = python(str(BENCHMARKS / "gpu.py"), *words, seconds=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads((folder / "results.json").read_text())["stages"]
    assert {name: result["outcome"] for name, result in stages.items()} == dict.fromkeys(names, "done")
