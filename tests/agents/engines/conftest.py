from pathlib import Path
from typing import Any

import pytest
from tiny_llama import save_tiny_llama


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 32 tokens with the context length of ``engine_checks``."""
    from engine_checks import CONTEXT

    return save_tiny_llama(tmp_path_factory.mktemp("policy"), positions=CONTEXT)


@pytest.fixture(scope="module")
def folder(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat tokenizer."""
    path = save_tiny_llama(tmp_path_factory.mktemp("model"), vocabulary=len(chatml))
    chatml.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy(folder: Path) -> Any:
    from policy_law import PolicyLaw

    return PolicyLaw(folder)
