from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo


class TurntreeAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """An algorithm that SGLang treats like its ``NGRAM``: no draft model, no separate cache, ready-made draft trees.

    ``CustomSpecAlgo`` lacks methods of the built-in algorithms that the scheduler calls; ``NGRAM`` provides them.
    """

    def is_ngram(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look these up
            raise AttributeError(name)
        return getattr(SpeculativeAlgorithm.NGRAM, name)
