from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from turntree.agents.demo.tokenizer import build_tokenizer

    return build_tokenizer()
