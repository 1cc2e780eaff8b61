"""Llamas of a few thousand random weights on disk, for engines that load models from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save_tiny_llama(
    folder: Path, *, vocabulary: int = 32, spread: float = 1.5, seed: int = 0, positions: int = 1024
) -> Path:
    """Write a model whose greedy tokens are not tied, whose laws are neither flat nor certain, and that hears where
    a token stands: as initialised it attends to all alike, and a draft at wrong positions would pass for a right one.

    Args:
        folder: Where to.
        vocabulary: Tokens; the last is the end of a turn.
        spread: Factor on the random output weights.
        seed: Of the weights.
        positions: Tokens of context that the model has.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,  # vLLM's least
            max_position_embeddings=positions,
            bos_token_id=None,
            eos_token_id=vocabulary - 1,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(20 * spread)
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(10)
            layer.self_attn.k_proj.weight.mul_(10)
    model.save_pretrained(folder)
    return folder


def save_chat_llama(folder: Path, tokenizer: Any, *, spread: float = 1.0) -> Path:
    """Write a model that ends its turns as a chat's, beside its tokenizer.

    Args:
        folder: Where to.
        tokenizer: With ``<|im_end|>``.
        spread: Factor on the random output weights; an untrained model hesitates between all tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=512,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        )
    )
    with torch.no_grad():
        model.lm_head.weight *= spread
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
