import doctest
import importlib
import runpy
import sys
from pathlib import Path

import gymnasium
import pytest

from turntree.envs import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_environment.py"
MODULES = [
    "turntree.envs.arithmetic",
    "turntree.envs.expression",
    "turntree.envs.parsers.harmony",
    "turntree.envs.parsers.hermes",
    "turntree.envs.parsers.llama3",
    "turntree.envs.parsers.qwen",
    "turntree.envs.spaces",
    "turntree.envs.tool",
    "turntree.rewards.answer",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    importlib.import_module(name)
    result = doctest.testmod(sys.modules[name])  # by name: the package attribute may be the decorator `tool`
    assert result.attempted > 0
    assert result.failed == 0


def test_the_example_environment_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert runpy.run_path(str(EXAMPLE))["main"]() == 1.0
    finally:
        gymnasium.registry.pop("examples/GuessNumber-v0", None)
        registry._registered.discard("examples/GuessNumber-v0")
    assert "reward: 1.0" in capsys.readouterr().out
