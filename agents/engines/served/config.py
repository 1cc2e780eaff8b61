from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConfig:
    """Size and behaviour of a vLLM or SGLang engine in this process."""

    max_batch: int = 32
    """Requests that decode concurrently; more wait in a queue."""
    max_context: int = 1024
    """Maximum tokens of prompt and response together."""
    dtype: str = "auto"
    """Dtype of weights and activations: auto, float32, bfloat16 or float16."""
    seed: int | None = None
    """Seeds the noise of requests without a seed; ``None`` is fresh entropy."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine: vLLM's ``AsyncEngineArgs`` or SGLang's server arguments."""

    def _check(self, least: Mapping[str, int], ours: Sequence[str], advice: str) -> None:
        for name, smallest in {"max_batch": 1, "max_context": 1, **least}.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{type(self).__name__}.{name} must be at least {smallest}, got {getattr(self, name)}")
        taken = [name for name in ours if name in self.engine_args]
        if taken:
            raise ValueError(f"{type(self).__name__}.engine_args must leave {', '.join(taken)} to turntree; {advice}")
