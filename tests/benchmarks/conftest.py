from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmark_module() -> Callable[[str], ModuleType]:
    """Import a module of benchmarks/ as its scripts do: by its bare name, from its folder."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(BENCHMARKS)
            module = importlib.import_module(name)
        assert Path(module.__file__ or "").parent == BENCHMARKS, f"{name} is also {sys.modules[name]}"
        return module

    return load
