from pathlib import Path
from typing import Any


def random_llama(vocabulary: int, *, seed: int = 0, **fields: Any) -> Any:
    """Build an initialised Llama; ``fields`` override this ``LlamaConfig``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **shape | fields))


def save_tiny_llama(
    folder: Path, *, vocabulary: int = 32, spread: float = 1.5, seed: int = 0, positions: int = 1024
) -> Path:
    """Save a model whose greedy tokens are untied, and whose distributions are neither flat nor certain.

    It also depends on positions: an untrained model attends evenly, so a draft at wrong positions would pass unnoticed.
    The last token ends a turn; ``spread`` multiplies the random output weights.
    """
    tokens = {"bos_token_id": None, "eos_token_id": vocabulary - 1, "tie_word_embeddings": False}
    heads = {"num_key_value_heads": 1, "head_dim": 32}  # vLLM's least
    model = random_llama(vocabulary, seed=seed, max_position_embeddings=positions, **heads, **tokens)
    model.lm_head.weight.data.mul_(20 * spread)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(10)
        layer.self_attn.k_proj.weight.data.mul_(10)
    model.save_pretrained(folder)
    return folder


def save_chat_llama(folder: Path, tokenizer: Any, *, spread: float = 1.0, positions: int = 512) -> Path:
    """Save a chat model and its tokenizer; ``<|im_end|>`` ends a turn.

    ``spread`` multiplies the random output weights: otherwise all tokens are nearly equally likely.
    """
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    size = {"intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": positions}
    model = random_llama(len(tokenizer), eos_token_id=end, **size)
    model.lm_head.weight.data.mul_(spread)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
