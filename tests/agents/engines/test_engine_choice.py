from pathlib import Path
from typing import Any

import pytest
from tables import table

from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine, open_policy, parsed_engine_args
from turntree.agents.errors import UsageError
from turntree.spec_tree import ForestConfig


def at_a_url(name: EngineName) -> EngineChoice:
    return EngineChoice(name=name, model="m", max_batch=1, max_context=8, base_url="http://localhost:1")


@pytest.mark.parametrize("name", [name for name in EngineName if name is not EngineName.LOCAL])
def test_an_engine_that_serves_may_be_found_at_a_url(name: EngineName) -> None:
    open_policy(at_a_url(name))


@pytest.mark.parametrize(("name", "says"), [(EngineName.LOCAL, "--engine local"), (EngineName.OPENAI, "only text")])
def test_what_does_not_serve_tokens_is_no_engine_at_a_url(name: EngineName, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_engine(at_a_url(name))


@pytest.mark.parametrize(("name", "gpus", "dtype", "precision"), table(__file__, "precisions"))
def test_on_a_gpu_an_external_engine_has_the_models_own_precision(name, gpus, dtype, precision, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    choice = EngineChoice(name=EngineName(name), model="m", max_batch=1, max_context=8, dtype=dtype)
    assert choice.precision == precision
    assert EngineChoice(name=EngineName(name), model="m", max_batch=1, max_context=8).dtype == "auto"


async def test_the_settings_of_the_store_reach_the_engine(tiny_model: Path) -> None:
    given = ForestConfig(max_tokens=2048)
    choice = EngineChoice(name=EngineName.LOCAL, model=str(tiny_model), max_batch=1, max_context=8, forest=given)
    async with open_engine(choice) as engine:
        assert engine.forest.config.max_tokens == 2048  # type: ignore[attr-defined]


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
