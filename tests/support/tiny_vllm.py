"""A policy that vLLM on the CPU can run, and what a reference says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from turntree.spec_tree.noise import exponential

ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
"""Of a process that starts vLLM."""


def save_policy(folder: Path, vocabulary: int = 96, *, seed: int = 0, **settings: Any) -> Path:
    """Save a Llama that is small, and sure enough of itself that drafts come true; heads of 32 are vLLM's least.

    Args:
        folder: Where to.
        vocabulary: Tokens.
        seed: Of the weights.
        settings: Further fields of its ``LlamaConfig``, or others in the stead of those here.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    fields: dict[str, Any] = dict(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    LlamaForCausalLM(LlamaConfig(**fields | settings)).save_pretrained(folder)
    return folder


def laws_of(model: Any, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> Any:
    """Log-probabilities of all tokens at each of ``tokens`` and behind the last, shape (tokens + 1, vocabulary)."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :]
    return logits.double().log_softmax(-1).numpy()


def chosen(laws: Any, tokens: tuple[int, ...]) -> list[float]:
    """The log-probability of each token."""
    return [float(laws[place, token]) for place, token in enumerate(tokens)]


def race(laws: Any, seed: int, count: int) -> list[int]:
    """What a seed says at the first positions, by the noise's definition."""
    vocabulary, seeds = np.arange(laws.shape[1]), np.array([seed], np.uint64)
    return [int((exponential(seeds, np.array([n]), vocabulary) / np.exp(laws[n])).argmin()) for n in range(count)]
