"""The protocol of every engine: token ids in, token ids out.

An engine never sees text. ``TurnRequest.state`` tells the draft store where in which dialogue the turn is; an engine
without speculation ignores the state. A draft saves forward passes and never changes what is sampled.
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

    STOP = "stop"  #: a stop token was sampled (the last token), or ``watch`` ended the turn
    LENGTH = "length"  #: ``max_tokens`` or the context ran out
    ABORT = "abort"  #: the request was aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. Names and meanings follow vLLM's ``SamplingParams``."""

    temperature: float = 1.0
    """0 is greedy; positive values below 1e-4 are refused, since float32 cannot hold the distribution."""
    top_p: float = 1.0
    """Nucleus mass, in (0, 1]."""
    top_k: int = -1
    """Number of tokens kept; -1 keeps all."""
    min_p: float = 0.0
    """Minimum probability relative to the most probable token, in [0, 1]; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides positive logits and multiplies others, for tokens in the prompt or the turn; in [0.01, 100]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the turn already has, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each occurrence in the turn, in [-2, 2]."""
    max_tokens: int = 256
    """Maximum tokens sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the turn."""
    seed: int | None = None
    """Seed of the noise that picks tokens, a function of seed, position and token only; ``None``: fresh noise."""
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
    _: KW_ONLY
    state: DialogueState | None = None
    """Dialogue state that keys the draft store; ``None`` keys it by the tokens alone."""
    draft: Sequence[int] = ()
    """Turn-level draft: the caller's proposal for the whole turn, verified first, in one pass where it fits.

    It never changes what is sampled. If it is an earlier turn with the same seed, this is called seeded replay."""
    precomputed_for: int = 0
    """Later training step that the turn is precomputed for (sampled before its caller needs it), 0 if needed now.

    A precomputed turn uses an idle slot. When another turn needs the slot, the engine (``IdleSlots`` with vLLM and
    SGLang) aborts the precomputed turn, which keeps its tokens so far."""
    reuse: bool = True
    """Whether the turn may begin with a stored turn and be stored itself; ``False`` in validation."""
    sample: int = 0
    """Index of the episode among its task's episodes in a training step of verl, else 0.

    A turn begins only with a stored turn of the same ``sample``. Otherwise the stored turn would depend on which
    episode asks first."""
    watch: Callable[[Sequence[int]], bool] | None = None
    """Called with the tokens of each step on the engine's thread; returning ``True`` ends the turn.

    Only the local engine calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """Speculation counters of one request."""

    verify_steps: int = 0  #: forward passes in which the request sampled tokens
    drafted: int = 0  #: draft tokens that were verified
    accepted: int = 0  #: draft tokens that the policy itself sampled
    #: sampled positions at which the draft had at least one next token (a child). This and the next three fields leave
    #: out the positions of a caller's ``draft``, which may come from the same noise as the sampled token
    tested: int = 0
    matched: int = 0  #: tested positions where the policy drew one of the children
    #: sum over tested positions of the policy's total probability m of the drafted children, after all transforms
    expected: float = 0.0
    variance: float = 0.0  #: sum over tested positions of m (1 - m)
    surprise: float = 0.0  #: sum over sampled tokens of -log p, after all transforms, nats
    entropy: float = 0.0  #: sum over sampled tokens of the entropy of the distribution that drew them, nats
    #: sum over sampled tokens of the variance of -log p under that distribution, nats squared
    entropy_variance: float = 0.0

    def untested(self) -> DraftStats:
        """Return a copy without the acceptance sums, which mean nothing if the draft has the turn's own noise."""
        return replace(self, tested=0, matched=0, expected=0.0, variance=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopLogprobs:
    """The most probable tokens at each position, most probable first."""

    ids: NDArray[np.int32]  #: shape (positions, k)
    #: natural logarithm, after all transforms, minus infinity if excluded, shape (positions, k)
    logprobs: NDArray[np.float32]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopLogprobs):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.logprobs, other.logprobs)

    def __hash__(self) -> int:
        return hash((self.ids.shape, self.ids.tobytes()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn."""

    token_ids: tuple[int, ...]  #: sampled tokens, including the stop token, shape (tokens,)
    #: natural log-probability of each token under the policy at its temperature (1 if greedy), before top-k and top-p,
    #: shape (tokens,)
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    draft: DraftStats = field(default_factory=DraftStats)
    #: whether each token was drafted and accepted, shape (tokens,); empty if not reported
    accepted: tuple[bool, ...] = ()
    cached_tokens: int = 0  #: prompt tokens whose keys and values were reused
    weights_version: int = 0  #: version of the weights that sampled the turn
    #: exactness level, one letter per token: A exact, B exact because the policy was never trained on the replayed
    #: draft, C exact only on average over replayed drafts, D biased (``spec_tree.rules.level``); empty: all A
    levels: str = ""
    #: natural log-probability of each token under the distribution that drew it, after all transforms, shape (tokens,);
    #: empty if not recorded
    behaviour_logprobs: tuple[float, ...] = ()
    #: most probable tokens at each position, shape (tokens, k); ``None`` if not requested
    top: TopLogprobs | None = None
    #: weights version of each token, shape (tokens,); empty if all equal ``weights_version``
    versions: tuple[int, ...] = ()
    #: whether each token was inserted instead of sampled, shape (tokens,); empty if none was. Such a token is not
    #: trained on, and its log-probability is 0
    forced: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of given tokens under the policy."""

    #: natural log-probability of each token after all transforms, may be minus infinity, shape (tokens,)
    logprobs: tuple[float, ...]
    #: most probable tokens at each position and after the last token, shape (tokens + 1, k); ``None`` if not requested
    top: TopLogprobs | None = None
    #: as ``Completion.logprobs`` (before top-k and top-p), shape (tokens,); empty if equal to ``logprobs``
    policy_logprobs: tuple[float, ...] = ()
    #: entropy of the distribution of each token, after all transforms, nats, shape (tokens,); empty if not computed
    entropy: tuple[float, ...] = ()
    #: variance of -log p under that distribution, nats squared, shape (tokens,); empty if not computed
    entropy_variance: tuple[float, ...] = ()
    weights_version: int = 0
    cached_tokens: int = 0  #: tokens whose keys and values were reused


def derive_seed(*parts: int) -> int:
    """Return a seed in [0, 2**63) that depends only on ``parts`` and their order.

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
        """Score ``token_ids`` after ``prompt_ids`` under ``sampling``'s transforms.

        Also returns the ``top`` most probable tokens at each position. A following ``generate`` reuses the computed
        keys and values.
        """
