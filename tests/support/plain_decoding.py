"""Seeded decoding without an engine: the model's own attention, reference distributions and noise."""

from collections.abc import Sequence

import numpy as np
import torch
from laws.token_counts import token_counts

from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree.rules.noise import exponential
from turntree.spec_tree.rules.transforms import Transforms, distribution


def laws_along(model: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling) -> np.ndarray:
    """Return the distribution before each of ``tokens`` and after the last, shape (tokens + 1, vocabulary)."""
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :].double().numpy()
    size = logits.shape[-1]
    transforms = Transforms(**{name: getattr(sampling, name) for name in Transforms.__dataclass_fields__})
    output = np.stack([token_counts(tokens[:i], size) for i in range(len(logits))])
    return distribution(logits, transforms, prompt=token_counts(prompt, size), output=output)


def plain_tokens(
    model: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, seed: int
) -> tuple[int, ...]:
    """Return the token that plain decoding with ``seed`` samples after each proper prefix of ``tokens``.

    By induction, ``tokens`` is the turn of plain decoding if the result equals it and it ends where it must.
    """
    p = laws_along(model, prompt, tokens, sampling)[:-1]
    noise = exponential(np.array([[seed]], np.uint64), np.arange(len(p))[:, None], np.arange(p.shape[1]))
    with np.errstate(divide="ignore"):
        return tuple((noise / p).argmin(-1).tolist())


def ends_rightly(tokens: Sequence[int], sampling: Sampling) -> bool:
    """Return whether a turn ends at its first stop token or at its maximum length."""
    if any(token in sampling.stop_token_ids for token in tokens[:-1]):
        return False
    return tokens[-1] in sampling.stop_token_ids or len(tokens) == sampling.max_tokens
