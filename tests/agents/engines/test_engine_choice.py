from pathlib import Path

import pytest
from tables import table

from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine, open_policy
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
