from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an untrained Llama of a few thousand parameters whose turns are often alike."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer: Any = make_tokenizer(CHATML, special=special, eos="<|endoftext|>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= 40  # an untrained model hesitates between all tokens; this one does not
    folder = tmp_path_factory.mktemp("tiny_model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
