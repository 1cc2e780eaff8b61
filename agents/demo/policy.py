"""The demo policy: a tiny Llama of about half a million parameters, as an ordinary Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.errors import MissingExtra

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShape:
    hidden: int = 128
    """Width of the residual stream."""
    layers: int = 3
    heads: int = 4
    """Attention heads, each with its own keys and values."""
    intermediate: int = 256
    """Width of the feed-forward layers."""
    context: int = 256
    """Tokens of prompt and response together."""
    rope_theta: float = 1000.0
    """Base of the rotary positions; small because dialogues are short."""
    initial_std: float = 0.08
    """Standard deviation of the initial weights; with the usual 0.02, a model of this width needs twice the steps."""


def build_policy(
    shape: PolicyShape | None = None, *, seed: int = 0, tokenizer: PreTrainedTokenizerBase | None = None
) -> LlamaForCausalLM:
    """Create an untrained policy; torch's random state is restored."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingExtra("the demo policy", "local") from error

    shape = shape or PolicyShape()
    words = build_tokenizer() if tokenizer is None else tokenizer
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        initializer_range=shape.initial_std,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: LlamaForCausalLM = LlamaForCausalLM(config).float()
        return model


def save_policy(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    model.save_pretrained(folder)
    (build_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return folder
