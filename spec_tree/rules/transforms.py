"""Sampling transforms: from logits to the distribution that tokens are drawn from and drafts verified against.

Order and meaning follow vLLM's ``SamplingParams``: repetition penalty, frequency and presence penalty,
temperature, min-p, top-k, top-p, renormalisation. At a node (token of a draft tree), tokens on the path to
the node count as sampled, so the distribution is that of plain decoding. For ties at the edge of top-k and top-p, the
smallest token ids are kept; vLLM keeps all tokens tied for the last rank of top-k.

Not covered: logit bias, allowed and banned words, minimum lengths, grammars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transforms:
    """Sampling parameters: how the logits of one request become probabilities."""

    temperature: float = 1.0  #: 0 is greedy: all mass on the largest logit after the penalties
    top_k: int = -1  #: tokens kept; -1 keeps all
    top_p: float = 1.0  #: nucleus mass, in (0, 1]; the token that crosses this mass is kept
    min_p: float = 0.0  #: minimum probability relative to the most probable token, in [0, 1]
    repetition_penalty: float = 1.0  #: divides positive, multiplies negative logits of prompt and output tokens; > 0
    presence_penalty: float = 0.0  #: subtracted from the logits of output tokens
    frequency_penalty: float = 0.0  #: subtracted once per occurrence in the output

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k must be -1 (all) or at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must lie in [0, 1], got {self.min_p}")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty must be positive, got {self.repetition_penalty}")


def distribution(
    logits: Floats, transforms: Transforms, *, prompt: Ints | None = None, output: Ints | None = None
) -> Floats:
    """Return the policy's probabilities, in the shape of ``logits``: (..., vocabulary).

    ``prompt`` and ``output`` count each token, broadcast against ``logits``; ``output`` includes the draft's path.
    """
    logits = np.asarray(logits, np.float64)
    nothing = np.zeros(logits.shape[-1], np.int64)
    logits = penalise(logits, transforms, nothing if prompt is None else prompt, nothing if output is None else output)
    if transforms.temperature == 0:
        best: Floats = (np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]).astype(np.float64)
        return best
    logits = logits / transforms.temperature
    p = _normalised(np.exp(logits - logits.max(-1, keepdims=True)))
    p = p * keep_min_p(p, transforms.min_p)
    p = p * keep_top_k(p, transforms.top_k)
    p = p * keep_top_p(p, transforms.top_p)
    return _normalised(p)


def penalise(logits: Floats, transforms: Transforms, prompt: Ints, output: Ints) -> Floats:
    repeated = (prompt > 0) | (output > 0)
    scale = np.where(logits > 0, 1 / transforms.repetition_penalty, transforms.repetition_penalty)
    logits = np.where(repeated, logits * scale, logits)
    penalised: Floats = logits - transforms.frequency_penalty * output - transforms.presence_penalty * (output > 0)
    return penalised


def keep_min_p(p: Floats, min_p: float) -> Flags:
    """Return which tokens have at least ``min_p`` times the highest probability, shape (..., vocabulary)."""
    keep: Flags = p >= min_p * p.max(-1, keepdims=True)
    return keep


def keep_top_k(p: Floats, top_k: int) -> Flags:
    """Return which tokens are among the ``top_k`` likeliest (-1: all), shape (..., vocabulary)."""
    if top_k == -1:
        return np.ones(p.shape, np.bool_)
    order = np.argsort(-p, axis=-1, kind="stable")
    rank = np.empty(p.shape, np.int64)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(p.shape[-1]), p.shape), -1)
    keep: Flags = rank < top_k
    return keep


def keep_top_p(p: Floats, top_p: float) -> Flags:
    """Return which tokens have less than ``top_p`` of the mass on likelier tokens, shape (..., vocabulary)."""
    if top_p == 1:
        return np.ones(p.shape, np.bool_)
    order = np.argsort(-p, axis=-1, kind="stable")
    sorted_p = np.take_along_axis(p, order, -1)
    before = np.cumsum(sorted_p, -1) - sorted_p
    kept = (before < top_p * p.sum(-1, keepdims=True)) | (np.arange(p.shape[-1]) == 0)
    keep = np.empty(p.shape, np.bool_)
    np.put_along_axis(keep, order, kept, -1)
    return keep


def _normalised(weights: Floats) -> Floats:
    p: Floats = weights / weights.sum(-1, keepdims=True)
    return p
