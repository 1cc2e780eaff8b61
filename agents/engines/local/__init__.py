"""The local engine: PyTorch, any Hugging Face decoder, CPU or GPU. Its settings load without PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.local.config import LocalEngineConfig, Speculation
from turntree.agents.engines.local.stats import EngineStats

if TYPE_CHECKING:
    from turntree.agents.engines.local.engine import LocalEngine

__all__ = ["EngineStats", "LocalEngine", "LocalEngineConfig", "Speculation"]


def __getattr__(name: str) -> Any:
    if name != "LocalEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.engine").LocalEngine
