from pathlib import Path
from typing import Any

import pytest
from tables import table

from turntree.agents.engines.engine_choice import EngineName, parsed_engine_args
from turntree.agents.errors import UsageError


def test_an_object_is_taken_and_nothing_is_nothing() -> None:
    assert parsed_engine_args(EngineName.VLLM, '{"tensor_parallel_size": 2}') == {"tensor_parallel_size": 2}
    assert parsed_engine_args(EngineName.LOCAL, None) == {}


@pytest.mark.parametrize(("engine", "text", "base_url", "complaint"), table(__file__, "wrong_engine_args"))
def test_what_no_engine_takes_is_refused_in_words(engine: str, text: str, base_url: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parsed_engine_args(EngineName(engine), text, base_url=base_url or None)


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "{model}"),
        ("eval", "turntree/Arithmetic-v0", "--model", "{model}"),
        ("bench", "{model}", "turntree/Arithmetic-v0"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_starts_an_engine_reads_them(turntree: Any, tiny_model: Path, command: Any) -> None:
    said = turntree(*(word.format(model=tiny_model) for word in command), "--engine", "vllm", "--engine-args", "[]")
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "--engine-args must be a JSON object" in said.err
