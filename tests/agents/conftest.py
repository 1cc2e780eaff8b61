from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import LLAMA3, chatml_tokenizer, make_tokenizer
from command import Said, run_command
from tiny_llama import save_chat_llama

from turntree.agents.loop.renderer import Renderer

pytest.register_assert_rewrite("engine_checks")


@pytest.fixture(scope="session")
def chatml() -> Any:
    return chatml_tokenizer()


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
    return save_chat_llama(tmp_path_factory.mktemp("tiny_model"), chatml)


@pytest.fixture
def turntree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    monkeypatch.setenv("COLUMNS", "160")
    return partial(run_command, capsys)
