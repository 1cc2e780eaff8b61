from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHATML, LLAMA3, make_tokenizer

from turntree.agents.renderer import Renderer


@pytest.fixture(scope="session")
def chatml() -> Any:
    return make_tokenizer(CHATML, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos="<|endoftext|>")


@pytest.fixture(scope="session")
def llama3() -> Any:
    return make_tokenizer(
        LLAMA3,
        special=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        eos="<|eot_id|>",
        bos="<|begin_of_text|>",
    )


@pytest.fixture(scope="session")
def renderer(chatml: Any) -> Renderer:
    return Renderer(chatml)


@pytest.fixture(scope="session")
def tiny_model(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory with an untrained Llama of a few thousand parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny_model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(chatml),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=chatml.convert_tokens_to_ids("<|im_end|>"),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    chatml.save_pretrained(folder)
    return folder
