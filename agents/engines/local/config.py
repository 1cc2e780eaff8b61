"""Settings of the local engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Settings of drafting. None of them changes what is sampled."""

    max_nodes: int = 8
    """Most draft nodes of one request in one step."""
    max_depth: int = 8
    """Greatest depth of a draft."""
    min_probability: float = 0.05
    """A node is verified if the store's estimate that its whole path is accepted reaches this probability. An adaptive
    engine chooses its threshold from here up; a low one is best for few requests at once."""
    chain: bool = False
    """Draft one continuation instead of a tree."""
    max_step_nodes: int | None = None
    """Most draft nodes of all requests together in one step; ``None`` bounds them on an accelerator alone: 2,048
    tokens with the last sampled one of each request (``drafting.step_bound``), for the memory of their logits."""
    adaptive: bool = True
    """Verify the drafts that give the most tokens per second by the engine's own measured steps: fewer than the
    settings above allow, or none."""

    def __post_init__(self) -> None:
        for name in ("max_nodes", "max_depth", "max_step_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Speculation.{name} must be at least 1, got {value}")
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"Speculation.min_probability must lie in [0, 1], got {self.min_probability}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineConfig:
    """Size and behaviour of a local engine."""

    max_batch: int = 32
    """Requests that decode at once; more wait in a queue."""
    max_context: int = 1024
    """Most tokens of prompt and response together."""
    parked_slots: int | None = None
    """Finished turns whose keys and values are kept for the dialogue's next turn; ``None`` keeps as
    many as ``max_batch``."""
    precomputed_slots: int | None = None
    """Precomputed requests that decode at once, among ``max_batch``; ``None`` is no further bound."""
    prefill_chunk: int = 1024
    """Most prompt tokens of one request processed in one step."""
    dtype: str = "float32"
    """Dtype of weights and activations: float32, bfloat16, float16 or float64."""
    device: str = "cpu"
    """Torch device, or ``auto``: a GPU where PyTorch sees one."""
    memory_bytes: int | None = None
    """Most memory of weights, keys and values together, bytes; ``None`` is no bound. What a step computes with comes
    on top."""
    speculation: Speculation | None = field(default_factory=Speculation)
    """Settings of drafting; ``None`` drafts nothing."""
    threads: int | None = None
    """Torch threads of the engine; ``None`` leaves torch's setting."""
    monitors: bool = True
    """Sum up entropies and acceptance for the exactness monitors (``DraftStats.tested`` and the fields after it);
    they stay 0 otherwise."""
    seed: int | None = None
    """Seeds the noise of requests that bring no seed; ``None`` is fresh entropy."""

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
        """Sequences whose keys and values fit in the cache."""
        return self.max_batch + (self.max_batch if self.parked_slots is None else self.parked_slots)

    @property
    def columns(self) -> int:
        """Tokens of a slot, drafts included."""
        return self.max_context + (0 if self.speculation is None else self.speculation.max_nodes)

    def fitted(self, *, weights: int, token: int) -> LocalEngineConfig:
        """These settings with as many slots as ``memory_bytes`` has room for; parked ones are given up first.

        Args:
            weights: Size of the weights, bytes.
            token: Size of the keys and values of one token, bytes.

        Raises:
            ValueError: If there is no room for one slot.

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
