from pathlib import Path

import pytest
from chat_tokenizers import chatml_tokenizer
from tiny_llama import save_chat_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an untrained Llama of a few thousand parameters whose turns are often alike."""
    return save_chat_llama(tmp_path_factory.mktemp("tiny_model"), chatml_tokenizer(), spread=40.0)
