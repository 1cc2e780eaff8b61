"""One turn on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling
from turntree.spec_tree import DialogueState


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt, what has been sampled after it, and where its keys and values are."""

    prompt: list[int]
    """Token ids, shape (prompt,)."""
    sampling: Sampling
    """How to draw."""
    state: DialogueState
    """Names the dialogue state for the store."""
    seed: int
    """64-bit seed of the noise."""
    deliver: Callable[[Request], None]
    """Called on the engine's thread when the request has finished."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and sampled tokens."""
    logprobs: list[float] = field(default_factory=list)
    """Of the sampled tokens."""
    accepted: list[bool] = field(default_factory=list)
    """Which sampled tokens had been drafted."""
    slot: int = -1
    """Its place in the cache, -1 while waiting."""
    computed: int = 0
    """Tokens whose keys and values are in the slot."""
    leader: Request | None = None
    """The request whose prompt is being computed and will be shared."""
    handle: int | None = None
    """The live turn in the store."""
    cached: int = 0
    """Prompt tokens that were not computed again."""
    verify_steps: int = 0
    """Forward passes in which it sampled."""
    drafted: int = 0
    """Draft tokens verified."""
    finish: FinishReason | None = None
    """Set when it is over."""
    cancelled: bool = False
    """Set by the caller from any thread; the engine drops the request at the next step."""
    version: int = 0
    """Version of the weights that sampled the last token."""
    error: Exception | None = None
    """What broke, if the engine failed."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def sampled(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen yet."""
        return len(self.tokens) - self.computed

    def completion(self) -> Completion:
        """The finished turn."""
        assert self.finish is not None
        return Completion(
            token_ids=tuple(self.tokens[len(self.prompt) :]),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish,
            draft=DraftStats(verify_steps=self.verify_steps, drafted=self.drafted, accepted=sum(self.accepted)),
            accepted=tuple(self.accepted),
            cached_tokens=self.cached,
            weights_version=self.version,
        )
