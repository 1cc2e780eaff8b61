import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Said
from tiny_llama import save_chat_llama

Command = Callable[..., Said]


@pytest.fixture(scope="module")
def thinking_model(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = copy.deepcopy(chatml)
    tokenizer.chat_template += "{% if not quiet %}<think>{% endif %}"
    return save_chat_llama(tmp_path_factory.mktemp("thinking"), tokenizer)


def test_doctor_describes_a_models_template(turntree: Command, thinking_model: Path) -> None:
    for variables, opens in (("{}", "; the prompt opens thought"), ("{quiet: true}", "")):
        out = turntree("doctor", "--model", str(thinking_model), "--template", variables, "--json").out
        rows = {row["part"]: row["what"] for row in json.loads(out)}
        assert rows["template: reasoning"] == "<think> to </think>" + opens
        assert rows["template: end tokens"] == "<|im_end|> <|endoftext|>"
        assert rows["template: variables"] == "quiet"


def test_an_evaluation_has_the_variables_and_the_bound_and_records_both(turntree, thinking_model, tmp_path):
    out = tmp_path / "episodes.jsonl"
    command = ["eval", "turntree/Arithmetic-v0", "--model", str(thinking_model), "-n", "1", "--max-tokens", "40"]
    turntree(*command, "--max-thinking-tokens", "4", "--out", str(out))
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["max_thinking_tokens"] == 4
    assert any(row["episode"]["turns"][0]["completion"]["forced"])
    again = turntree(*command, "--template", "{quiet: true}", "--out", str(out))
    assert "max_thinking_tokens 4 in the file, None now" in again.err
    assert "template_options None in the file, {'quiet': True} now" in again.err
    wrong = turntree(*command, "--template", "{quit: true}")
    assert "reads no variable 'quit'; did you mean 'quiet'?" in wrong.err
