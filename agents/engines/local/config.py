from __future__ import annotations

from dataclasses import dataclass, field, replace

_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Settings of drafting. None of them changes what is sampled."""

    max_nodes: int = 8
    """Maximum draft nodes of one request in one step."""
    max_depth: int = 8
    """Maximum depth of a draft."""
    min_probability: float = 0.05
    """Minimum estimated probability of the whole path to a node.

    An adaptive engine chooses a threshold of at least this value. Choose a low one for few concurrent requests."""
    chain: bool = False
    """Draft one continuation instead of a tree."""
    max_step_nodes: int | None = None
    """Maximum draft nodes of all requests in one step.

    ``None`` sets a bound only on accelerators, for the memory of the logits: 2,048 tokens, including the last sampled
    token of each request (``drafting.step_bound``)."""
    adaptive: bool = True
    """Verify as many of the allowed drafts as give the most tokens per second by measured steps, possibly none."""

    def __post_init__(self) -> None:
        for name in ("max_nodes", "max_depth", "max_step_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Speculation.{name} must be at least 1, got {value}")
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"Speculation.min_probability must lie in [0, 1], got {self.min_probability}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineConfig:
    max_batch: int = 32
    """Requests that decode concurrently; more wait in a queue."""
    max_context: int = 1024
    """Maximum tokens of prompt and response together."""
    parked_slots: int | None = None
    """Finished turns whose keys and values stay, for the dialogue's next turn; ``None``: as many as ``max_batch``."""
    precomputed_slots: int | None = None
    """Concurrent precomputed requests (sampled before they are needed); ``None``: bounded by ``max_batch`` only."""
    prefill_chunk: int = 1024
    """Maximum prompt tokens of one request processed in one step."""
    dtype: str = "float32"
    """Dtype of weights and activations: float32, bfloat16, float16 or float64."""
    device: str = "cpu"
    """Torch device, or ``auto``: a GPU if PyTorch sees one."""
    memory_bytes: int | None = None
    """Maximum memory of weights, keys and values, bytes; activations come on top. ``None``: no bound."""
    speculation: Speculation | None = field(default_factory=Speculation)
    """Settings of drafting; ``None`` drafts nothing."""
    threads: int | None = None
    """Torch threads of the engine; ``None`` leaves torch's setting."""
    monitors: bool = True
    """Compute the sums of the exactness monitors (``DraftStats.tested`` and later fields); else they stay 0."""
    seed: int | None = None
    """Seeds the noise of requests without a seed; ``None`` is fresh entropy."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_context", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"LocalEngineConfig.{name} must be at least 1, got {getattr(self, name)}")
        if self.parked_slots is not None and self.parked_slots < 0:
            raise ValueError(f"LocalEngineConfig.parked_slots must not be negative, got {self.parked_slots}")
        if self.precomputed_slots is not None and self.precomputed_slots < 1:
            raise ValueError(f"LocalEngineConfig.precomputed_slots must be at least 1, got {self.precomputed_slots}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"LocalEngineConfig.dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")

    @property
    def slots(self) -> int:
        """Sequences whose keys and values fit into the cache."""
        return self.max_batch + (self.max_batch if self.parked_slots is None else self.parked_slots)

    @property
    def columns(self) -> int:
        """Tokens per slot, drafts included."""
        return self.max_context + (0 if self.speculation is None else self.speculation.max_nodes)

    def fitted(self, *, weights: int, token: int) -> LocalEngineConfig:
        """Return these settings with as many slots as ``memory_bytes`` allows, dropping parked slots first.

        ``weights`` is the size of the weights, ``token`` that of one token's keys and values, bytes.

        Raises:
            ValueError: If not even one slot fits.

        Example:
            >>> config = LocalEngineConfig(max_batch=4, max_context=92, memory_bytes=1_000)
            >>> fitted = config.fitted(weights=400, token=1)
            >>> fitted.max_batch, fitted.parked_slots
            (4, 2)
        """
        if self.memory_bytes is None:
            return self
        slots = min(self.slots, (self.memory_bytes - weights) // (token * self.columns))
        if slots < 1:
            raise ValueError(
                f"weights of {weights:,} bytes and keys and values of {self.columns:,} tokens, {token:,} bytes each, "
                f"do not fit in {self.memory_bytes:,} bytes; give the engine more memory, or take a shorter context "
                "or a smaller model"
            )
        batch = min(self.max_batch, slots)
        return replace(self, max_batch=batch, parked_slots=slots - batch)
