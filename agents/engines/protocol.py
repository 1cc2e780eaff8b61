"""The protocol of every engine: token ids in, token ids out.

An engine never sees text. ``state`` names the dialogue state for the drafter;
an engine without speculation ignores it. A draft is a draft that saves passes and
changes nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree import DialogueState


class FinishReason(StrEnum):
    """Why the engine stopped."""

    STOP = "stop"
    """A stop token was sampled, the last token of the completion; or whoever watched the turn ended it."""
    LENGTH = "length"
    """``max_tokens`` or the context ran out."""
    ABORT = "abort"
    """The request was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. Names and meanings follow vLLM's ``SamplingParams``."""

    temperature: float = 1.0
    """0 is greedy; below 1e-4 float32 cannot hold what is drawn from."""
    top_p: float = 1.0
    """Nucleus mass, in (0, 1]."""
    top_k: int = -1
    """Number of tokens kept; -1 keeps all."""
    min_p: float = 0.0
    """Tokens below this share of the most probable token's probability are excluded, in [0, 1]; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Logits of tokens in the prompt or the turn so far are divided by it if positive, else multiplied; in
    [0.01, 100]."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that the turn has already, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time that the turn has it already, in [-2, 2]."""
    max_tokens: int = 256
    """Most tokens sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the turn."""
    seed: int | None = None
    """With a seed the noise depends on seed, position and token alone; without one it is fresh."""
    top_logprobs: int = 0
    """Most probable tokens recorded at each position, after all transforms; 0 records none."""

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-4 <= self.temperature < np.inf):
            raise ValueError(f"temperature must be 0 (greedy) or at least 0.0001, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k != -1 and not 1 <= self.top_k < 1 << 31:
            raise ValueError(f"top_k must be -1 (all) or lie in [1, 2**31), got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must lie in [0, 1], got {self.min_p}")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ValueError(f"repetition_penalty must lie in [0.01, 100] (1 is none), got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise ValueError(f"{name} must lie in [-2, 2], got {getattr(self, name)}")
        if self.top_logprobs < 0:
            raise ValueError(f"top_logprobs must be 0 (none) or positive, got {self.top_logprobs}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not all(0 <= token < 1 << 31 for token in self.stop_token_ids):
            raise ValueError(f"stop_token_ids must lie in [0, 2**31), got {self.stop_token_ids}")


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to sample."""

    prompt_ids: Sequence[int]
    """Token ids, shape (prompt,)."""
    sampling: Sampling
    """Sampling parameters."""
    _: KW_ONLY
    state: DialogueState | None = None
    """The dialogue state, by which the store of drafts is keyed; ``None`` keys it by the tokens alone."""
    draft: Sequence[int] = ()
    """The caller's draft of the turn, verified first, in one pass where it fits. It never changes what is sampled.
    With a seed and a turn that was sampled with the same seed this is seeded replay."""
    precomputed_for: int = 0
    """The later training step that the turn is precomputed for, 0 for one that is needed now. It uses an idle
    slot, and is aborted with its tokens so far when the slot is needed; with vLLM and SGLang through ``IdleSlots``."""
    reuse: bool = True
    """Whether the turn may begin with a stored one, and be stored to begin later ones; a validation's may not."""
    sample: int = 0
    """Number of the episode among those of its task in a training step of verl; elsewhere 0. A turn begins only with a
    stored one of the same number, so that which one does not depend on who asks first."""
    watch: Callable[[Sequence[int]], bool] | None = None
    """Called with the tokens of each step as they are sampled, on the engine's thread, so that they can be shown at
    once; ``True`` ends the turn after them. The local engine calls it, others show and end nothing early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """Speculation counters of one request."""

    verify_steps: int = 0
    """Forward passes in which the request sampled tokens."""
    drafted: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that the policy itself sampled."""
    tested: int = 0
    """Positions at which the policy drew with at least one drafted child. Positions of a caller's own
    ``draft`` are left out here and in the two sums below: it may share the noise of the draw."""
    matched: int = 0
    """Tested positions where the policy drew one of the children."""
    expected: float = 0.0
    """Sum over those positions of the policy's mass m on the drafted children, after all transforms."""
    variance: float = 0.0
    """Sum over those positions of m (1 - m)."""
    surprise: float = 0.0
    """Sum over sampled tokens of -log p, after all transforms, nats."""
    entropy: float = 0.0
    """Sum over sampled tokens of the entropy of the distribution that drew them, nats."""
    entropy_variance: float = 0.0
    """Sum over sampled tokens of the variance of -log p under that distribution, nats squared."""

    def untested(self) -> DraftStats:
        """Without the sums about acceptance: of a store that has seen what the same noise drew, it tells nothing."""
        return replace(self, tested=0, matched=0, expected=0.0, variance=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopLogprobs:
    """The most probable tokens at each position, most probable first."""

    ids: NDArray[np.int32]
    """Token ids, shape (positions, k)."""
    logprobs: NDArray[np.float32]
    """Natural log-probabilities after all transforms, minus infinity for excluded tokens, shape (positions, k)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopLogprobs):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.logprobs, other.logprobs)

    def __hash__(self) -> int:
        return hash((self.ids.shape, self.ids.tobytes()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn."""

    token_ids: tuple[int, ...]
    """Sampled tokens, the stop token included, shape (tokens,)."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token under the policy at its temperature, before top-k and
    top-p (at temperature 0: at temperature 1), shape (tokens,)."""
    finish_reason: FinishReason
    """Why the engine stopped."""
    draft: DraftStats = field(default_factory=DraftStats)
    """Speculation counters."""
    accepted: tuple[bool, ...] = ()
    """Whether each token was drafted and accepted, shape (tokens,); empty where the engine does not report it."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were reused."""
    weights_version: int = 0
    """Version of the policy's weights that sampled the turn."""
    levels: str = ""
    """Exactness of each token, one letter a token: A exact given the policy, B exact as the replayed draft was
    never trained on, C exact in the marginal only, D biased; empty: all A."""
    behaviour_logprobs: tuple[float, ...] = ()
    """Natural log-probability of each token under the distribution that drew it, after all transforms, shape
    (tokens,); empty where not recorded."""
    top: TopLogprobs | None = None
    """The ``Sampling.top_logprobs`` most probable tokens at each token's position, shape (tokens, k);
    ``None`` if not requested."""
    versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token, shape (tokens,), or empty if ``weights_version`` did them all."""
    forced: tuple[bool, ...] = ()
    """Whether each token was put in without being sampled, shape (tokens,), or empty if none was. Nothing is learnt
    from those; their log-probability is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of given tokens under the policy."""

    logprobs: tuple[float, ...]
    """Natural log-probability of each token after all transforms, minus infinity possible, shape (tokens,)."""
    top: TopLogprobs | None = None
    """The most probable tokens at each position and after the last token, shape (tokens + 1, k);
    ``None`` if not requested."""
    policy_logprobs: tuple[float, ...] = ()
    """Log-probability of each token as ``Completion.logprobs`` has it (before top-k and top-p), shape (tokens,);
    empty: the same as ``logprobs``."""
    entropy: tuple[float, ...] = ()
    """Entropy of the distribution at each token's position, after all transforms, nats, shape (tokens,); empty where
    not computed."""
    entropy_variance: tuple[float, ...] = ()
    """Variance of -log p under that distribution, nats squared, shape (tokens,); empty where not computed."""
    weights_version: int = 0
    """Version of the policy's weights that scored."""
    cached_tokens: int = 0
    """Tokens whose keys and values were reused."""


def derive_seed(*parts: int) -> int:
    """A seed in [0, 2**63) that depends on ``parts`` and their order alone.

    >>> derive_seed(0, 1) == derive_seed(0, 1) != derive_seed(1, 0)
    True
    """
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@runtime_checkable
class Engine(Protocol):
    """An engine that samples turns."""

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn."""


@runtime_checkable
class ScoringEngine(Engine, Protocol):
    """An engine that also scores given tokens."""

    async def score(
        self, prompt_ids: tuple[int, ...], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Log-probabilities of ``token_ids`` after ``prompt_ids`` under ``sampling``'s transforms, and the ``top``
        most probable tokens at each position; a following ``generate`` finds the keys and values computed."""
