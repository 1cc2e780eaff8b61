"""What the drafts are worth: turns are replayed against a store of the turns before them."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from turntree.spec_tree import ForestConfig

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TURNTREE_DATA", REPOSITORY.parent / "shared"))


@pytest.fixture(scope="module")
def store() -> ModuleType:
    """The benchmark, as a module."""
    spec = importlib.util.spec_from_file_location("store_benchmark", REPOSITORY / "benchmarks" / "store.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tokens_per_step(store: ModuleType, turns: list[object], config: ForestConfig, **draft: object) -> float:
    row = store.replay(turns, data="", mode="", batch=1, config=config, **{"max_nodes": 16, **draft})
    return float(row.tokens_per_step)


def test_generated_turns_are_drafted_well_and_much_worse_without_re_joining(store: ModuleType) -> None:
    turns = store.synthetic(steps=4, states=4)
    rejoining = tokens_per_step(store, turns, ForestConfig())
    prefix_only = tokens_per_step(store, turns, ForestConfig(levels=store.PREFIX_ONLY))
    assert rejoining > 2.5
    assert prefix_only < 0.6 * rejoining


def test_a_tree_is_worth_more_than_a_chain_of_as_many_tokens(store: ModuleType) -> None:
    turns = store.synthetic(steps=4, states=4)
    tree = tokens_per_step(store, turns, ForestConfig(), max_nodes=8)
    chain = tokens_per_step(store, turns, ForestConfig(), max_nodes=8, chain=True)
    assert tree > chain > 1.5


@pytest.mark.slow
def test_recorded_turns_are_drafted_well_and_much_worse_without_re_joining(store: ModuleType) -> None:
    path = DATA / "traces" / "math_cot_100x8.npz"
    if not path.is_file():
        pytest.skip(f"no recorded traces: {path} is missing (set TURNTREE_DATA)")
    turns = store.recorded(path, 10)
    rejoining = tokens_per_step(store, turns, ForestConfig())
    prefix_only = tokens_per_step(store, turns, ForestConfig(levels=store.PREFIX_ONLY))
    assert rejoining > 4
    assert prefix_only < 0.5 * rejoining
