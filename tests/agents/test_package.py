from __future__ import annotations

import pytest
from interpreter import python

import turntree.agents


@pytest.mark.parametrize(
    "first", ["turntree.agents", "turntree.agents.loop.rollout", "turntree.agents.evaluation.evaluate"]
)
@pytest.mark.parametrize("name", ["rollout", "evaluate"])
def test_a_function_goes_before_the_module_of_its_name_whatever_is_imported_first(first: str, name: str) -> None:
    code = f"import {first}\nfrom turntree.agents import {name}\nassert callable({name}), {name}"
    python("-c", code, check=True)


def test_every_public_name_is_there_and_no_other() -> None:
    for name in turntree.agents.__all__:
        assert getattr(turntree.agents, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = turntree.agents.no_such_name
