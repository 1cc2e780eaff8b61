from __future__ import annotations

import pytest

from turntree.agents.engine_choice import EngineChoice, EngineName, open_engine, open_policy
from turntree.agents.errors import UsageError


@pytest.mark.parametrize("name", [name for name in EngineName if name is not EngineName.LOCAL])
def test_an_engine_that_serves_may_be_found_at_a_url(name: EngineName) -> None:
    open_policy(EngineChoice(name=name, model="m", max_batch=1, max_context=8, base_url="http://localhost:1"))


def test_an_engine_that_does_not_serve_is_not_looked_for_at_a_url() -> None:
    choice = EngineChoice(name=EngineName.LOCAL, model="m", max_batch=1, max_context=8, base_url="http://localhost:1")
    with pytest.raises(UsageError, match="--engine local"):
        open_engine(choice)


def test_what_gives_text_alone_is_no_engine() -> None:
    choice = EngineChoice(name=EngineName.OPENAI, model="m", max_batch=1, max_context=8, base_url="http://localhost:1")
    with pytest.raises(UsageError, match="text alone"):
        open_engine(choice)
