"""The local engine: PyTorch, any Hugging Face decoder, CPU or GPU."""

from turntree.agents.engines.local.config import LocalEngineConfig, Speculation
from turntree.agents.engines.local.engine import LocalEngine
from turntree.agents.engines.local.stats import EngineStats

__all__ = ["EngineStats", "LocalEngine", "LocalEngineConfig", "Speculation"]
