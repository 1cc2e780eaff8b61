from __future__ import annotations

import pytest

from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine, open_policy
from turntree.agents.errors import UsageError


def at_a_url(name: EngineName) -> EngineChoice:
    return EngineChoice(name=name, model="m", max_batch=1, max_context=8, base_url="http://localhost:1")


@pytest.mark.parametrize("name", [name for name in EngineName if name is not EngineName.LOCAL])
def test_an_engine_that_serves_may_be_found_at_a_url(name: EngineName) -> None:
    open_policy(at_a_url(name))


@pytest.mark.parametrize(("name", "says"), [(EngineName.LOCAL, "--engine local"), (EngineName.OPENAI, "text alone")])
def test_what_does_not_serve_tokens_is_no_engine_at_a_url(name: EngineName, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_engine(at_a_url(name))
