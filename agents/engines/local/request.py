from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.session import DraftTurn
from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, Scores, TopLogprobs
from turntree.spec_tree import DialogueState


@dataclass(slots=True, kw_only=True)
class Monitored:
    """Sums for the exactness monitors, with the meanings of ``DraftStats``."""

    tested: int = 0
    matched: int = 0
    expected: float = 0.0
    variance: float = 0.0
    surprise: float = 0.0
    entropy: float = 0.0
    entropy_variance: float = 0.0

    def add(self, sums: Sequence[float]) -> None:
        # In the order of the fields. ``type`` keeps the counts integers.
        for name, term in zip(self.__slots__, sums, strict=True):
            total = getattr(self, name)
            setattr(self, name, total + type(total)(term))


@dataclass(slots=True, kw_only=True, eq=False)
class Request(DraftTurn):
    """One turn in the engine: sampled, or given and scored."""

    prompt: list[int]  #: shape (prompt,)
    sampling: Sampling
    state: DialogueState  #: key of the draft store
    seed: int  #: 64-bit seed of the noise
    deliver: Callable[[Request], None]  #: called on the engine's thread when the request has finished
    #: score the tokens of ``turn_draft`` instead of drawing; with ``top_logprobs`` also the position after them
    scoring: bool = False
    tokens: list[int] = field(default_factory=list)  #: prompt and sampled tokens
    scored: int = 0  #: positions scored so far
    #: log-probabilities of the sampled tokens, before penalties, min-p, top-k and top-p
    logprobs: list[float] = field(default_factory=list)
    #: log-probabilities of the sampled tokens, after all transforms
    behaviour: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)  #: at scored positions, nats
    #: variances of -log p at scored positions, nats squared
    entropy_variances: list[float] = field(default_factory=list)
    #: most probable tokens and their log-probabilities, some positions per entry
    top: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = field(default_factory=list)
    monitored: Monitored = field(default_factory=Monitored)
    accepted: list[bool] = field(default_factory=list)  #: whether each sampled token had been drafted
    slot: int = -1  #: slot in the cache, -1 while waiting
    computed: int = 0  #: tokens whose keys and values are in the slot
    #: precomputed for a later training step: uses an idle slot, and ends with its tokens so far if the slot is needed
    ahead: bool = False
    leader: Request | None = None  #: another request, which computes a common prefix that this request waits for
    cached: int = 0  #: prompt tokens whose keys and values were reused
    verify_steps: int = 0  #: forward passes in which the request sampled
    drafted: int = 0  #: draft tokens verified
    finish: FinishReason | None = None
    cancelled: bool = False  #: set by the caller from any thread; the engine drops the request at the next step
    version: int = 0  #: version of the weights that sampled the last token
    error: Exception | None = None  #: set if the engine or the request's own ``watch`` failed
    watch: Callable[[Sequence[int]], bool] | None = None  #: as ``TurnRequest.watch``

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def sampled(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen yet."""
        return len(self.tokens) - self.computed

    @property
    def positions(self) -> int:
        """Number of positions to score, if ``scoring``."""
        return len(self.turn_draft) + (self.sampling.top_logprobs > 0)

    def ended_by_watch(self, tokens: Sequence[int]) -> bool:
        try:
            return self.watch is not None and self.watch(tokens)
        except Exception as error:  # the caller's function failed: only this request ends
            self.error = error
            return True

    def mark(self) -> Callable[[], None]:
        """Return a function that undoes all changes of a pass that has not been committed."""
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
        # Scores depend on the weights, which have changed.
        self.tokens, self.committed, self.scored = list(self.prompt), 0, 0
        self.logprobs, self.behaviour, self.entropies, self.entropy_variances, self.top = [], [], [], [], []

    def completion(self) -> Completion:
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


#: fields that a pass appends to, and fields that it sets; see ``mark``
_GROWN = ("tokens", "logprobs", "behaviour", "entropies", "entropy_variances", "top", "accepted")
_FIGURES = ("turn_draft", "committed", "scored", "computed", "verify_steps", "drafted", "version")


class Checked(NamedTuple):
    prompt: list[int]  #: shape (prompt,)
    tokens: list[int]  #: tokens that come with the prompt: a draft, or text to score


def checked(
    prompt_ids: Sequence[int], sampling: Sampling, token_ids: Sequence[int], name: str, *, vocabulary: int
) -> Checked:
    """Return a request as lists of integers, checked before it reaches the engine's thread.

    ``name`` is the name of ``token_ids`` in messages.

    Raises:
        ValueError: If the prompt is empty, a token is unknown, or more top tokens are requested than there are.
    """
    prompt, tokens = [int(token) for token in prompt_ids], [int(token) for token in token_ids]
    if not prompt:
        raise ValueError("the prompt is empty; the policy needs at least one token")
    for what, some in (("prompt", prompt), (name, tokens)):
        low, high = min(some, default=0), max(some, default=0)
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"the {what} holds token {low if low < 0 else high}, the model knows 0 to {vocabulary - 1}"
            )
    if sampling.top_logprobs > vocabulary:
        raise ValueError(
            f"top_logprobs is {sampling.top_logprobs}, but the model knows only {vocabulary} tokens; request fewer"
        )
    return Checked(prompt, tokens)
