"""Log-probabilities that an external engine reports, as arrays, and the scores computed from them.

External engines report log-probabilities at temperature 1, before any transform. This module computes the requested
distribution from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import Sampling, Scores, TopLogprobs
from turntree.spec_tree.rules.transforms import Transforms, distribution

Floats = NDArray[np.float64]


class TokenLogprobs(NamedTuple):
    """Log-probabilities at some positions."""

    chosen: Floats  #: of the token at each position, shape (positions,)
    ids: NDArray[np.int32]  #: most probable tokens, most probable first, shape (positions, k)
    logprobs: Floats  #: of these tokens, shape (positions, k)

    @classmethod
    def from_flat(cls, flat: Any, width: int, positions: slice = slice(None)) -> TokenLogprobs:
        """Read vLLM's ``FlatLogprobs``: per position the token itself, then ``width`` or more most probable tokens."""
        starts = np.array(flat.start_indices[positions], np.int64)
        entries = starts[:, None] + np.arange(width + 1)
        logprobs = np.array(flat.logprobs, np.float64)[entries]
        ids = np.array(flat.token_ids, np.int64)[entries]
        return cls(logprobs[:, 0], ids[:, 1:].astype(np.int32), logprobs[:, 1:])

    @classmethod
    def from_rows(cls, tokens: Sequence[int], rows: Iterable[Mapping[int, float]], width: int) -> TokenLogprobs:
        """Read one mapping per position from token ids to log-probabilities.

        Each mapping has the token itself and the ``width`` most probable tokens.
        """
        chosen, ids, logprobs = [], [], []
        for token, row in zip(tokens, rows, strict=True):
            best = sorted(row.items(), key=lambda pair: -pair[1])[:width]
            chosen.append(row[token])
            ids.append([pair[0] for pair in best])
            logprobs.append([pair[1] for pair in best])
        shape = (len(tokens), width)
        return cls(
            np.array(chosen, np.float64),
            np.array(ids, np.int32).reshape(shape),
            np.array(logprobs, np.float64).reshape(shape),
        )

    def at(self, positions: slice) -> TokenLogprobs:
        return TokenLogprobs(self.chosen[positions], self.ids[positions], self.logprobs[positions])

    def then(self, other: TokenLogprobs) -> TokenLogprobs:
        """Return these positions followed by those of ``other``."""
        return TokenLogprobs(
            np.concatenate([self.chosen, other.chosen]),
            np.concatenate([self.ids, other.ids]),
            np.concatenate([self.logprobs, other.logprobs]),
        )


def reshapes(sampling: Sampling) -> bool:
    """Return whether scoring needs the whole vocabulary: at any setting but the model's own at temperature 1."""
    return sampling.temperature != 1 or sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0


def check_scorable(sampling: Sampling) -> None:
    """Refuse penalties, whose effect cannot be computed from log-probabilities.

    Raises:
        ValueError: If ``sampling`` has a penalty.
    """
    if sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty:
        raise ValueError(
            "this engine returns log-probabilities before penalties, so penalties cannot be applied when scoring; "
            f"got repetition_penalty={sampling.repetition_penalty}, presence_penalty="
            f"{sampling.presence_penalty}, frequency_penalty={sampling.frequency_penalty}; use 1, 0 and 0"
        )


def scores(
    readings: TokenLogprobs,
    tokens: Sequence[int],
    sampling: Sampling,
    *,
    top: int,
    cached_tokens: int,
    weights_version: int,
) -> Scores:
    """Score given tokens under ``sampling``.

    ``readings`` are log-probabilities at temperature 1, for each token's position and the one after the last token. If
    ``reshapes(sampling)``, they cover the whole vocabulary. The ``top`` most probable tokens have these positions, too.
    """
    count = len(tokens)
    entries: dict[str, Any] = {"cached_tokens": cached_tokens, "weights_version": weights_version}
    if not reshapes(sampling):
        best = TopLogprobs(ids=readings.ids[:, :top], logprobs=readings.logprobs[:, :top].astype(np.float32))
        return Scores(logprobs=tuple(readings.chosen[:count].tolist()), top=best if top else None, **entries)
    model = np.empty_like(readings.logprobs)
    np.put_along_axis(model, readings.ids.astype(np.int64), readings.logprobs, 1)
    probabilities = distribution(
        model,
        Transforms(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p),
    )
    tempered = distribution(model, Transforms(temperature=sampling.temperature or 1.0))
    positions = np.arange(count), np.array(tokens, np.int64)
    with np.errstate(divide="ignore"):
        logarithms = np.log(probabilities)
        policy = np.log(tempered[positions])
    own = np.where(probabilities > 0, -logarithms, 0.0)[:count]
    entropy = (probabilities[:count] * own).sum(1)
    variance = (probabilities[:count] * own**2).sum(1) - entropy**2
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    best = TopLogprobs(ids=order.astype(np.int32), logprobs=np.take_along_axis(logarithms, order, 1).astype(np.float32))
    return Scores(
        logprobs=tuple(logarithms[positions].tolist()),
        top=best if top else None,
        policy_logprobs=tuple(policy.tolist()),
        entropy=tuple(entropy.tolist()),
        entropy_variance=tuple(np.maximum(variance, 0.0).tolist()),
        **entries,
    )
