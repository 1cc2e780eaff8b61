"""One turn in the engine: sampled, or given and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.session import DraftTurn
from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, Scores, TopLogprobs
from turntree.spec_tree import DialogueState


@dataclass(slots=True, kw_only=True)
class Monitored:
    """Sums for the exactness monitors, with the meanings of ``DraftStats``."""

    tested: int = 0
    """Positions with drafted children."""
    matched: int = 0
    """Tested positions where the drawn token was one of the children."""
    expected: float = 0.0
    """Sum of the children's mass m."""
    variance: float = 0.0
    """Sum of m (1 - m)."""
    surprise: float = 0.0
    """Sum of -log p of the drawn tokens, nats."""
    entropy: float = 0.0
    """Sum of the entropies, nats."""
    entropy_variance: float = 0.0
    """Sum of the variances of -log p, nats squared."""

    def add(self, sums: Sequence[float]) -> None:
        """Add the sums of a step, in the order of the fields."""
        tested, matched, expected, variance, surprise, entropy, entropy_variance = sums
        self.tested += int(tested)
        self.matched += int(matched)
        self.expected += expected
        self.variance += variance
        self.surprise += surprise
        self.entropy += entropy
        self.entropy_variance += entropy_variance


@dataclass(slots=True, kw_only=True, eq=False)
class Request(DraftTurn):
    """A prompt, the tokens sampled after it, and the place of its keys and values."""

    prompt: list[int]
    """Token ids, shape (prompt,)."""
    sampling: Sampling
    state: DialogueState
    """Dialogue state, the key of the store."""
    seed: int
    """64-bit seed of the noise."""
    deliver: Callable[[Request], None]
    """Called on the engine's thread when the request has finished."""
    scoring: bool = False
    """The tokens of ``turn_draft`` are to be scored: they are taken as given, and nothing is drawn;
    ``Sampling.top_logprobs`` above 0 includes the position after the last one."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and sampled tokens."""
    scored: int = 0
    """Positions scored so far, where ``scoring``."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the sampled tokens, before penalties, min-p, top-k and top-p."""
    behaviour: list[float] = field(default_factory=list)
    """Log-probabilities of the sampled tokens, after all transforms."""
    entropies: list[float] = field(default_factory=list)
    """Entropies at scored positions, nats."""
    entropy_variances: list[float] = field(default_factory=list)
    """Variances of -log p at scored positions, nats squared."""
    top: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = field(default_factory=list)
    """Most probable tokens and their log-probabilities, some positions per entry."""
    monitored: Monitored = field(default_factory=Monitored)
    """Sums over the sampled tokens."""
    accepted: list[bool] = field(default_factory=list)
    """Whether each sampled token had been drafted."""
    slot: int = -1
    """Its slot in the cache, -1 while waiting."""
    computed: int = 0
    """Tokens whose keys and values are in the slot."""
    ahead: bool = False
    """Precomputed for a later step: it uses an idle slot, and ends with its tokens so far if the slot is needed."""
    leader: Request | None = None
    """The request whose prompt is being computed and will be shared."""
    cached: int = 0
    """Prompt tokens whose keys and values were reused."""
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
    """The error, if the engine or the request's own ``watch`` failed."""
    watch: Callable[[Sequence[int]], bool] | None = None
    """As ``TurnRequest.watch``."""

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

    @property
    def positions(self) -> int:
        """Positions whose distribution is needed, if ``scoring``."""
        return len(self.turn_draft) + (self.sampling.top_logprobs > 0)

    def ended_by_watch(self, tokens: Sequence[int]) -> bool:
        """Show the tokens of a step to whoever watches; returns whether the turn ends. An error ends it alone."""
        try:
            return self.watch is not None and self.watch(tokens)
        except Exception as error:  # a caller's function: the other requests of the step go on
            self.error = error
            return True

    def mark(self) -> Callable[[], None]:
        """Takes back all that a pass does to the request after this call, before its tokens are committed."""
        grown = [getattr(self, name) for name in _GROWN]
        lengths = [len(one) for one in grown]
        figures = [(name, getattr(self, name)) for name in _FIGURES]
        monitored = replace(self.monitored)

        def undo() -> None:
            for some, length in zip(grown, lengths, strict=True):
                del some[length:]
            for name, value in figures:
                setattr(self, name, value)
            self.monitored = monitored

        return undo

    def start_over(self) -> None:
        """Discard scores, since the weights have changed."""
        self.tokens, self.committed, self.scored = list(self.prompt), 0, 0
        self.logprobs, self.behaviour, self.entropies, self.entropy_variances, self.top = [], [], [], [], []

    def completion(self) -> Completion:
        """The finished turn."""
        assert self.finish is not None
        return Completion(
            token_ids=tuple(self.tokens[len(self.prompt) :]),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish,
            draft=DraftStats(
                verify_steps=self.verify_steps,
                drafted=self.drafted,
                accepted=sum(self.accepted),
                **{name: getattr(self.monitored, name) for name in Monitored.__slots__},
            ),
            accepted=tuple(self.accepted),
            cached_tokens=self.cached,
            weights_version=self.version,
            behaviour_logprobs=tuple(self.behaviour),
            top=self._top(),
        )

    def scores(self) -> Scores:
        """The scores of the given tokens."""
        return Scores(
            logprobs=tuple(self.behaviour),
            top=self._top(),
            policy_logprobs=tuple(self.logprobs),
            entropy=tuple(self.entropies),
            entropy_variance=tuple(self.entropy_variances),
            weights_version=self.version,
            cached_tokens=self.cached,
        )

    def _top(self) -> TopLogprobs | None:
        k = self.sampling.top_logprobs
        if k == 0:
            return None
        ids = np.concatenate([np.zeros((0, k), np.int32), *(ids for ids, _ in self.top)])
        logprobs = np.concatenate([np.zeros((0, k), np.float32), *(logprobs for _, logprobs in self.top)])
        return TopLogprobs(ids=ids, logprobs=logprobs)


_GROWN = ("tokens", "logprobs", "behaviour", "entropies", "entropy_variances", "top", "accepted")
_FIGURES = ("turn_draft", "committed", "scored", "computed", "verify_steps", "drafted", "version")
