from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def proof() -> Callable[[str], ModuleType]:
    """Import a module of the exactness report, which stands in benchmarks/, by its bare name."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(BENCHMARKS)
            return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def policies(proof: Callable[[str], ModuleType]) -> ModuleType:
    return proof("policies")


@pytest.fixture(scope="session")
def tv(proof: Callable[[str], ModuleType]) -> Callable[..., float]:
    return proof("enumeration").tv
