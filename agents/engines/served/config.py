"""Settings that an engine of vLLM and one of SGLang in this process have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConfig:
    """Size and behaviour of one engine."""

    max_batch: int = 32
    """Requests that decode at once; more wait in a queue."""
    max_context: int = 1024
    """Most tokens of prompt and response together."""
    dtype: str = "auto"
    """Dtype of weights and activations: auto, float32, bfloat16 or float16."""
    seed: int | None = None
    """Seeds the noise of requests that bring no seed; ``None`` is fresh entropy."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine's own, for example ``{"tensor_parallel_size": 2}`` of vLLM's
    ``AsyncEngineArgs`` or ``{"tp_size": 2}`` of SGLang's server."""

    def _check(self, least: Mapping[str, int], ours: Sequence[str], advice: str) -> None:
        """Check sizes, and that the engine's own arguments leave ours to turntree.

        Raises:
            ValueError: If they do not.
        """
        for name, smallest in {"max_batch": 1, "max_context": 1, **least}.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{type(self).__name__}.{name} must be at least {smallest}, got {getattr(self, name)}")
        taken = [name for name in ours if name in self.engine_args]
        if taken:
            raise ValueError(f"{type(self).__name__}.engine_args must leave {', '.join(taken)} to turntree; {advice}")
